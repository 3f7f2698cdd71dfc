// The whole life of batches, by the official SDK alone.
// It knows the gateway by OPENAI_BASE_URL and OPENAI_API_KEY, and prints the SDK's version.
// Takes the model's name, and one whose name has a slash.
import assert from "node:assert/strict";
import { createReadStream, readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI, { toFile } from "openai";

const [model, slashed] = process.argv.slice(2);
const endpoint = "/v1/chat/completions";
const client = new OpenAI();

function line(custom_id, says) {
  const body = { model, messages: [{ role: "user", content: says }] };
  return JSON.stringify({ custom_id, method: "POST", url: endpoint, body }) + "\n";
}

function create(input_file_id, changes = {}) {
  return client.batches.create({ input_file_id, endpoint, completion_window: "24h", ...changes });
}

async function all(pages) {
  const found = [];
  for await (const one of pages) found.push(one.id);
  return found;
}

async function refused(kind, call) {
  let error;
  try {
    await call();
  } catch (caught) {
    error = caught;
  }
  assert.equal(error?.constructor, kind, `wanted ${kind.name}, got ${error}`);
  return error;
}

// Models
const models = await all(client.models.list());
assert.ok(models.includes(model) && models.includes(slashed));
assert.equal((await client.models.retrieve(slashed)).id, slashed);

// Upload: a stream, which is sent without a length, the file before the fields
const rows = line("good", "hello") + line("bad", "refuse this");
writeFileSync("in.jsonl", rows);
const file = await client.files.create({
  file: createReadStream("in.jsonl"),
  purpose: "batch",
  expires_after: { anchor: "created_at", seconds: 3600 },
});
assert.equal(file.filename, "in.jsonl");
assert.equal(file.bytes, rows.length);
assert.equal(file.status, "processed");
assert.equal(file.expires_at, file.created_at + 3600);
assert.deepEqual(await client.files.retrieve(file.id), file);
assert.equal(await (await client.files.content(file.id)).text(), rows);

// Create and poll
let batch = await create(file.id, { metadata: { run: "nightly" } });
assert.equal(batch.status, "validating");
const deadline = Date.now() + 30_000;
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  assert.ok(Date.now() < deadline, batch.status);
  await sleep(50);
  batch = await client.batches.retrieve(batch.id);
}
assert.equal(batch.status, "completed");
assert.deepEqual(batch.metadata, { run: "nightly" });
assert.deepEqual(batch.request_counts, { total: 2, completed: 1, failed: 1 });

// Content: in one piece, and as a stream
const output = await (await client.files.content(batch.output_file_id)).text();
const good = JSON.parse(output);
assert.equal(good.custom_id, "good");
assert.equal(good.response.body.choices[0].message.content, "HELLO");
const streamed = await client.files.content(batch.error_file_id);
const bad = [];
for await (const text of createInterface({ input: Readable.fromWeb(streamed.body) })) {
  bad.push(JSON.parse(text));
}
assert.deepEqual(
  bad.map((one) => [one.custom_id, one.response.status_code, one.error]),
  [["bad", 400, null]],
);

// Pages
for (let made = 0; made < 4; made++) await create(file.id);
const page = await client.batches.list({ limit: 2 });
assert.deepEqual([page.data.length, page.has_more], [2, true]);
const listed = await all(client.batches.list({ limit: 2 }));
assert.equal(new Set(listed).size, 5);
assert.deepEqual(await all(client.batches.list()), listed);
assert.deepEqual(await all(client.files.list({ purpose: "batch", limit: 1 })), [file.id]);

// Cancel
const slow = await client.files.create({
  file: await toFile(Buffer.from(line("slow", "wait for it")), "slow.jsonl"),
  purpose: "batch",
});
const stopped = await create(slow.id);
// It may have ended by the time of the answer.
const answer = await client.batches.cancel(stopped.id);
assert.match(answer.status, /^cancell(ing|ed)$/);

// Delete
assert.deepEqual(await client.files.delete(file.id), {
  id: file.id,
  object: "file",
  deleted: true,
});

// Errors
const unknown = await refused(OpenAI.BadRequestError, () => create("file-none"));
assert.equal(unknown.param, "file_id");
const window = await refused(OpenAI.BadRequestError, () =>
  create("file-none", { completion_window: "1h" }),
);
assert.deepEqual([window.param, window.code], ["completion_window", "invalid_value"]);
const gone = await refused(OpenAI.NotFoundError, () => client.files.retrieve(file.id));
assert.match(gone.requestID, /^req_/);
await refused(OpenAI.NotFoundError, () => client.batches.retrieve("batch_none"));
const noModel = await refused(OpenAI.NotFoundError, () => client.models.retrieve("a/b"));
assert.equal(noModel.code, "model_not_found");
// Tried once, although the SDK repeats conflicts by itself
let calls = 0;
const counting = client.withOptions({
  fetch: (...asked) => {
    calls += 1;
    return fetch(...asked);
  },
});
await refused(OpenAI.ConflictError, () => counting.batches.cancel(batch.id));
assert.equal(calls, 1);
const stranger = new OpenAI({ apiKey: "sk-wrong-key-0123456789" });
const noKey = await refused(OpenAI.AuthenticationError, () => stranger.models.list());
assert.equal(noKey.code, "invalid_api_key");

const installed = new URL("./node_modules/openai/package.json", import.meta.url);
console.log(JSON.parse(readFileSync(installed)).version);
