// node submit.mjs REQUESTS.jsonl [MESSAGE_ID]: publishes a batch, and again until it is answered.
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import amqp from "amqplib";

const url = process.env.BATCHYARD_AMQP_URL;
const tenant = decodeURIComponent(new URL(url).username);

/** The reply; throws what RabbitMQ or the network says while there is none. */
async function submit(body, messageId) {
  const connection = await amqp.connect(url, { timeout: 10_000 });
  try {
    const channel = await connection.createConfirmChannel();
    const answered = new Promise((resolve, reject) => {
      connection.on("error", reject).on("close", () => reject(new Error("closed")));
      channel.on("error", reject);
      channel.on("return", () => reject(new Error("no queue took it")));
      channel.consume("amq.rabbitmq.reply-to", resolve, { noAck: true }).catch(reject);
      sleep(30_000, null, { ref: false }).then(() => reject(new Error("no reply")));
    });
    answered.catch(() => {}); // seen below, after the confirm
    channel.publish("batch.submit", `submit.v1.${tenant}`, Buffer.from(JSON.stringify(body)), {
      type: "batch.submit.v1",
      messageId, // the same each time: it is the same batch
      userId: tenant, // the broker checks it
      contentType: "application/json",
      persistent: true,
      mandatory: true,
      replyTo: "amq.rabbitmq.reply-to",
    });
    await Promise.race([channel.waitForConfirms(), answered]);
    return JSON.parse((await answered).content);
  } finally {
    await connection.close().catch(() => {});
  }
}

const [path, messageId = randomUUID()] = process.argv.slice(2);
const requests = readFileSync(path, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const body = {
  schema: "batch.submit/1",
  endpoint: requests[0].url,
  input: { kind: "inline", requests },
};
let reply;
for (const pause of [1, 2, 4, 8, 16, 32, 0]) { // back off: the queue may be full, the broker away
  try {
    reply = await submit(body, messageId);
    break;
  } catch (error) {
    console.error(`not confirmed, the same again in ${pause} s: ${error}`);
    await sleep(1000 * pause);
  }
}
console.log(JSON.stringify(reply ?? `gave up; try again with the same message id: ${messageId}`));
process.exit(reply?.status === "accepted" ? 0 : 1);
