// node subscribe.mjs STATE.json: keeps the newest state of each batch of the tenant, for ever.
import { existsSync, openSync, fsyncSync, closeSync, readFileSync, renameSync, writeSync } from "node:fs";
import amqp from "amqplib";

const url = process.env.BATCHYARD_AMQP_URL;
const tenant = decodeURIComponent(new URL(url).username);
const final = ["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"];
const path = process.argv[2];
const batches = existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : {};

/** On disk, whole or not at all. */
function commit() {
  const draft = openSync(`${path}.draft`, "w");
  writeSync(draft, JSON.stringify(batches));
  fsyncSync(draft);
  closeSync(draft);
  renameSync(`${path}.draft`, path);
}

const connection = await amqp.connect(url);
connection.on("close", () => process.exit(1)); // whoever starts us starts us again
const channel = await connection.createChannel();
await channel.prefetch(50);
// Our own, also while we are away. The operator has made it and bound it to our events.
const queue = `sub.${tenant}.main`;
await channel.consume(queue, (message) => {
  const { source, sequence, type, subject, data } = JSON.parse(message.content);
  const known = batches[source];
  // Repeats and latecomers change nothing: the highest sequence holds, and a final state is final.
  if (!known || (sequence > known.sequence && !final.includes(known.type))) {
    batches[source] = { sequence, type, data };
    commit(); // and only then the ack
  }
  channel.ack(message);
  console.log(sequence, type, subject);
});
