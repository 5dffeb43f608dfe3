// A streamed chat answer from a running service, in Node:
//
//   cd client/examples/node && npm install @grpc/grpc-js @grpc/proto-loader
//   node stream.mjs [TARGET] [QUESTION]
//
// @grpc/proto-loader reads the .proto file when the program starts; no stubs are generated.
// For typed stubs: npx proto-loader-gen-types --keepCase --longs=String --enums=String \
//   --defaults --oneofs --grpcLib=@grpc/grpc-js --outDir=generated \
//   -I ../../../protos octavo/v1/inference.proto

import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const target = process.argv[2] ?? "127.0.0.1:50051";
const question = process.argv[3] ?? "What is the capital of France?";

const protos = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../protos");
const definition = protoLoader.loadSync("octavo/v1/inference.proto", {
  includeDirs: [protos],
  keepCase: true, // field names as in the .proto file
  longs: String, // 64-bit numbers do not fit a JavaScript number
  enums: String,
  defaults: true,
  oneofs: true,
});
const { octavo } = grpc.loadPackageDefinition(definition);

const client = new octavo.v1.InferenceService(target, grpc.credentials.createInsecure(), {
  "grpc.keepalive_time_ms": 20_000, // a long prompt may be silent for a while
});

const request = {
  generation: {
    prompt: { chat: { messages: [{ role: "user", content: question }] } },
    sampling: { temperature: 0 },
    stopping: { max_tokens: 200 },
  },
};
const call = client.Generate(request, { deadline: Date.now() + 120_000 });

// Ctrl-C cancels the call, and with it the generation on the service.
process.once("SIGINT", () => call.cancel());

call.on("data", ({ chunk }) => {
  if (chunk.start) console.error(`[${chunk.request_id}, seed ${chunk.start.seed}]`);
  for (const output of chunk.outputs) {
    process.stdout.write(output.text);
    if (output.finish) process.stdout.write(`\n(${output.finish.reason})\n`);
  }
});
call.on("end", () => client.close());
call.on("error", (error) => {
  console.error(`${grpc.status[error.code]}: ${error.details}`);
  process.exitCode = 1;
  client.close();
});
