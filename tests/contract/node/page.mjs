// Goes through the page as a person does, in a real browser. Reads what it needs as JSON from its
// standard input, leaves pictures in a folder, and prints what it found as JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const given = JSON.parse(readFileSync(0, "utf8"));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const found = { violations: [], complaints: [], seen: [] };
const patience = { timeout: 60_000 };

const browser = await chromium.launch({
  executablePath: given.chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open(options = {}) {
  const context = await browser.newContext({ baseURL: given.url, viewport: { width: 1280, height: 860 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  // A blocked script or style is told on the console.
  page.on("console", (message) => {
    if (message.type() === "error") found.complaints.push(`${page.url()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => found.complaints.push(`${page.url()}: ${error}`));
  return page;
}

async function look(page, name, { picture = true } = {}) {
  found.seen.push(name);
  if (picture) await page.screenshot({ path: join(given.pictures, `${name}.png`), fullPage: true });
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const broken = await examine(page);
    found.violations.push(...broken.map((one) => `${name}, ${colorScheme}: ${one}`));
  }
  await page.emulateMedia({ colorScheme: name.startsWith("phone-dark") ? "dark" : "light" });
}

// What a screen reader's rules say against the page. Axe is put in from outside of it, because the
// page lets no foreign script in.
async function examine(page) {
  const report = await page.evaluate(`${axe}; axe.run(document, {resultTypes: ["violations"]})`);
  return report.violations.map(({ id, nodes }) => `${id} at ${nodes.map((node) => node.target).join(", ")}`);
}

async function lookAtPhone(page, places) {
  for (const [name, path] of places) {
    await page.goto(path);
    await look(page, `phone-dark-${name}`);
    const [wide, width] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    if (wide > width) found.violations.push(`phone ${path}: it is ${wide} wide on a screen of ${width}`);
  }
}

async function signIn(page, key = given.key) {
  await page.goto("/");
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.waitForURL("**/ui/batches");
}

const page = await open();
await page.goto("/");
await look(page, "sign-in");
// The examination finds what is wrong, so that finding nothing means something.
await page.evaluate(() => {
  document.querySelector("label").remove();
  // It would be a name, too.
  document.getElementById("key").removeAttribute("placeholder");
});
found.planted = await examine(page);
await signIn(page);
const cookies = await page.context().cookies();
found.cookies = cookies.map(({ name, value, httpOnly, sameSite }) => ({ name, value, httpOnly, sameSite }));
await page.getByText("org-wide survey").waitFor(patience);
await look(page, "batches");

// A batch that somebody else makes appears by itself, and so does its end.
const body = JSON.stringify({ ...given.batch, metadata: { label: "made elsewhere" } });
const headers = { authorization: `Bearer ${given.key}`, "content-type": "application/json" };
const made = await (await fetch(`${given.url}/v1/batches`, { method: "POST", headers, body })).json();
const row = page.locator(`#${made.id}`);
await row.getByText("made elsewhere").waitFor(patience);
await row.getByText("Completed").waitFor(patience);
found.appeared = true;

await page.getByLabel("Find").fill("survey");
await page.waitForFunction((id) => !document.getElementById(id), made.id, patience);
found.filtered = await page.locator("tbody tr").count();

await page.goto(`/ui/batches/${given.paced}`);
await page.getByText("left", { exact: false }).first().waitFor(patience);
found.paced = await page.locator("main").innerText();
await look(page, "batch-paced");
await page.goto(`/ui/batches/${given.mixed}`);
await look(page, "batch");
await page.getByRole("link", { name: "Failed requests" }).click();
await look(page, "failed");
await page.goto(`/ui/batches/${given.mixed}/results`);
found.results = await page.locator("main").innerText();
await look(page, "results");

// A file is checked first, and started by a button.
await page.goto("/ui/batches");
await page.getByRole("link", { name: "New batch" }).click();
await look(page, "new");
await page.getByLabel("A JSONL file").setInputFiles(given.bad);
await page.getByRole("button", { name: "Upload and check" }).click();
await page.getByText("A batch of this file would fail").waitFor(patience);
await look(page, "dry-run-bad");
await page.goto("/ui/new");
await page.getByLabel("A JSONL file").setInputFiles(given.held);
await page.getByRole("button", { name: "Upload and check" }).click();
await page.getByText("Every request would run").waitFor(patience);
await look(page, "dry-run");
await page.getByLabel("Label").fill("cancelled by keyboard");
await page.getByRole("button", { name: "Start the batch" }).click();
await page.waitForURL("**/ui/batches/batch_*");
found.started = page.url().split("/").pop();
await page.locator("main").getByText("Running", { exact: true }).waitFor(patience);
await look(page, "batch-running");

// Pausing and cancelling need no mouse, and an open question stays open while the page is live.
await page.getByRole("button", { name: "Pause" }).focus();
await page.keyboard.press("Enter");
await page.locator("main").getByText("Paused", { exact: true }).waitFor(patience);
await look(page, "batch-paused");
await page.locator("summary", { hasText: "Cancel" }).focus();
await page.keyboard.press("Enter");
await page.waitForTimeout(2500);
await page.keyboard.press("Tab");
await page.screenshot({ path: join(given.pictures, "batch-cancel.png") });
await page.keyboard.press("Enter");
await page.locator("main").getByText("Cancelled", { exact: true }).waitFor(patience);
found.cancelled = true;
await page.goto("/ui/events");
await page.getByText("batch.cancelled").first().waitFor(patience);
await look(page, "events");
await page.goto("/ui/batches/batch_00000000000000000000000000000000");
await look(page, "not-found");
const [lost] = found.complaints.splice(found.complaints.findIndex((text) => text.includes("404")), 1);
found.lost = lost;

// Operators see the fleet.
const operator = await open();
await operator.goto("/ui/sign-in");
await operator.getByLabel("API key").fill(given.operator);
await operator.keyboard.press("Enter");
await operator.waitForURL("**/ui/fleet");
found.fleet = await operator.locator("main").innerText();
await look(operator, "fleet");
await operator.getByRole("link", { name: "Tenants" }).click();
await operator.locator(`#t-${given.tenant}`).waitFor(patience);
await look(operator, "tenants");
await operator.goto("/ui/fleet/dead-letters");
await look(operator, "dead-letters");

// The same on a phone, in the dark.
const phone = await open({ viewport: { width: 390, height: 844 }, colorScheme: "dark", isMobile: true });
await signIn(phone);
await lookAtPhone(phone, [["batches", "/ui/batches"], ["batch-paced", `/ui/batches/${given.paced}`], ["batch", `/ui/batches/${given.mixed}`],
  ["failed", `/ui/batches/${given.mixed}/failed`], ["new", "/ui/new"], ["events", "/ui/events"]]);

const operatorsPhone = await open({ viewport: { width: 390, height: 844 }, colorScheme: "dark", isMobile: true });
await operatorsPhone.goto("/ui/sign-in");
await operatorsPhone.getByLabel("API key").fill(given.operator);
await operatorsPhone.keyboard.press("Enter");
await operatorsPhone.waitForURL("**/ui/fleet");
await lookAtPhone(operatorsPhone, [["fleet", "/ui/fleet"], ["tenants", "/ui/tenants"], ["dead-letters", "/ui/fleet/dead-letters"]]);

// Without JavaScript everything can be read, and the forms work.
const plain = await open({ javaScriptEnabled: false });
await signIn(plain);
found.plain = await plain.locator("tbody tr").count();
await plain.goto(`/ui/batches/${given.mixed}`);
found.plainBatch = await plain.locator("main").innerText();
await plain.getByRole("button", { name: "Sign out" }).click();
await plain.waitForURL("**/ui/sign-in");
await plain.goto("/ui/batches");
found.signedOut = plain.url();

await browser.close();
console.log(JSON.stringify(found));
