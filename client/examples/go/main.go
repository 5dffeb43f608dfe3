// A streamed chat answer from a running service, in Go.
//
// Generate the stubs first (needs protoc, or `buf`):
//
//	cd client/examples/go
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@latest
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@latest
//	protoc -I ../../../protos \
//	  --go_out=. --go_opt=module=example.com/octavo \
//	  --go_opt=Moctavo/v1/inference.proto=example.com/octavo/octavopb \
//	  --go-grpc_out=. --go-grpc_opt=module=example.com/octavo \
//	  --go-grpc_opt=Moctavo/v1/inference.proto=example.com/octavo/octavopb \
//	  octavo/v1/inference.proto
//	go mod init example.com/octavo && go mod tidy
//	go run . [TARGET] [QUESTION]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"example.com/octavo/octavopb"
)

func argument(index int, otherwise string) string {
	if len(os.Args) > index {
		return os.Args[index]
	}
	return otherwise
}

func main() {
	target := argument(1, "127.0.0.1:50051")
	question := argument(2, "What is the capital of France?")

	connection, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// a long prompt may be silent for a while
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()

	// Ctrl-C cancels the call, and with it the generation on the service.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()

	if err := stream(ctx, octavopb.NewInferenceServiceClient(connection), question); err != nil {
		log.Fatal(err) // a gRPC status; its details name every field that breaks a rule
	}
}

func stream(ctx context.Context, client octavopb.InferenceServiceClient, question string) error {
	answer, err := client.Generate(ctx, &octavopb.GenerateRequest{
		Generation: &octavopb.Generation{
			Prompt: &octavopb.Prompt{Kind: &octavopb.Prompt_Chat{Chat: &octavopb.Chat{
				Messages: []*octavopb.ChatMessage{{Role: "user", Content: question}},
			}}},
			// optional scalars are pointers: unset is not zero
			Sampling: &octavopb.SamplingParams{Temperature: proto.Float32(0)},
			Stopping: &octavopb.StoppingParams{MaxTokens: proto.Int32(200)},
		},
	})
	if err != nil {
		return err
	}
	for {
		response, err := answer.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, output := range response.GetChunk().GetOutputs() {
			fmt.Print(output.GetText())
			if finish := output.GetFinish(); finish != nil {
				fmt.Printf("\n(%s, %d tokens)\n", finish.GetReason(), finish.GetNumTokens())
			}
		}
	}
}
