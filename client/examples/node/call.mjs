// Any call of the API from Node, with the requests of ../requests.json:
//
//   cd client/examples/node && npm install @grpc/grpc-js @grpc/proto-loader
//   node call.mjs [TARGET] [CALL ...]

import { readFileSync } from "node:fs";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const here = path.dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? "127.0.0.1:50051";
const requests = JSON.parse(readFileSync(path.resolve(here, "../requests.json"), "utf8"));
const definition = protoLoader.loadSync("octavo/v1/inference.proto", {
  includeDirs: [path.resolve(here, "../../../protos")],
  keepCase: true,
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { octavo } = grpc.loadPackageDefinition(definition);
const client = new octavo.v1.InferenceService(target, grpc.credentials.createInsecure());

// A streamed call gives its messages one by one, any other one message.
function call(name) {
  const deadline = Date.now() + 120_000;
  if (octavo.v1.InferenceService.service[name].responseStream) {
    return new Promise((resolve, reject) => {
      const messages = [];
      const stream = client[name](requests[name], { deadline });
      stream.on("data", (message) => messages.push(message));
      stream.on("end", () => resolve(messages));
      stream.on("error", reject);
    });
  }
  return new Promise((resolve, reject) => {
    client[name](requests[name], { deadline }, (error, response) =>
      error ? reject(error) : resolve([response]),
    );
  });
}

const names = process.argv.length > 3 ? process.argv.slice(3) : Object.keys(requests);
for (const name of names) {
  try {
    for (const message of await call(name)) console.log(name, JSON.stringify(message));
  } catch (error) {
    console.error(`${name}: ${grpc.status[error.code]}: ${error.details}`);
    process.exitCode = 1;
  }
}
client.close();
