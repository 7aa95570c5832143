// Drives the dashboard in Chromium. Arguments: the admin URL, the check URL, the token, and a folder
// for screenshots or "". Prints "ok", or fails with a message.
const { chromium } = require('playwright-core');
const assert = require('node:assert');

const [admin, checks, token, folder] = process.argv.slice(2);
const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
];

const check = (policy, key) => fetch(`${checks}/v1/check`, {
  method: 'POST', body: JSON.stringify({ policy, key }), headers: { authorization: `Bearer ${token}` },
});

// One client that hammers, and a few that do not.
let isRunning = true;
const traffic = async () => {
  for (let round = 0; isRunning; round += 1) {
    await Promise.all([
      check('login', 'user:hammer'), check('login', 'user:hammer'), check('api', 'user:hammer'),
      check('api', `user:${round % 20}`), check('api', `user:${round % 7}`), check('login', `user:${round % 50}`),
    ]);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};

const problems = [];
const watched = async (context) => {
  const page = await context.newPage();
  page.on('console', (message) => { if (message.type() === 'error') problems.push(message.text()); });
  page.on('pageerror', (error) => problems.push(error.message));
  page.on('request', (request) => {
    if (!request.url().startsWith(admin) && !request.url().startsWith('data:')) problems.push(`request to ${request.url()}`);
  });
  return page;
};

const login = async (page) => {
  await page.goto(admin);
  await page.locator('#token').fill(token);
  await page.locator('#login button').click();
  await page.locator('#connection.live').waitFor();
};

const main = async () => {
  const running = traffic();
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await watched(context);

  // Without a token there are no data. The browser reports the refused request as an error.
  await page.goto(admin);
  await page.locator('#login').waitFor();
  assert.equal(await page.locator('#allowed').textContent(), '–');
  const refused = await page.evaluate(async () => (await fetch('/v1/reset', {
    method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"policy":"login","key":"user:hammer"}',
  })).status);
  assert.equal(refused, 401, 'a reset without a token');
  problems.splice(0);

  await login(page);
  const number = async () => Number((await page.locator('#allowed').textContent()).replace(/[^\d.]/g, ''));
  await page.waitForFunction(() => Number(document.getElementById('allowed').textContent) > 1);
  const history = [];
  for (let reading = 0; reading < 40 && new Set(history).size < 3; reading += 1) {
    history.push(await number());
    await page.waitForTimeout(250);
  }
  assert.ok(new Set(history).size >= 3, `the numbers move: ${history}`);

  // One click: the denied key, with the limit that denied it and the time at which it is free.
  const row = page.locator('#denied-keys tbody tr', { hasText: 'user:hammer' }).first();
  await row.waitFor();
  await row.click();
  await page.locator('#detail', { hasText: 'hammers' }).waitFor();
  const detail = await page.locator('#detail').innerText();
  assert.match(detail, /sliding_window_log 5\/minute/);
  assert.match(detail, /Free in\s+\d+ (s|min|ms)/);
  assert.match(detail, /hammers/);

  // Two more: look it up and reset it.
  isRunning = false;
  await running;
  await page.locator('#detail-use').click();
  await page.locator('#lookup-result', { hasText: 'Denied by sliding_window_log 5/minute' }).waitFor();
  await page.locator('#reset').click();
  await page.locator('#lookup-result', { hasText: 'Reset. Allowed; 5 of 5 left' }).waitFor();

  // The keyboard reaches a row and opens it.
  await page.locator('#detail-close').click();
  await page.locator('#denied-keys tbody tr').first().focus();
  await page.keyboard.press('Enter');
  assert.ok(await page.locator('#detail').isVisible());
  assert.equal(await page.evaluate(() => document.activeElement.id), 'detail');

  // The filter, and names for a screen reader.
  await page.locator('#filter').fill('log');
  assert.equal(await page.locator('#policies tbody tr').count(), 1);
  for (const label of ['Requests per second', 'Most denied keys', 'Look up a key', 'Policies']) {
    assert.ok(await page.getByRole('region', { name: label }).count() > 0, label);
  }
  await context.close();

  // No page is wider than its screen.
  isRunning = true;
  const again = traffic();
  for (const [name, colorScheme, width, height] of [['light', 'light', 1280, 1000], ['dark', 'dark', 1280, 1000], ['phone', 'light', 390, 844]]) {
    const other = await browser.newContext({ colorScheme, viewport: { width, height } });
    const shown = await watched(other);
    await shown.goto(admin);
    problems.splice(0);
    await login(shown);
    problems.splice(0);
    await shown.locator('#denied-keys tbody tr', { hasText: 'user:hammer' }).first().waitFor();
    const overflow = await shown.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${name}: ${overflow} pixels too wide`);
    if (folder) {
      await shown.waitForTimeout(20000);
      await shown.screenshot({ path: `${folder}/dashboard-${name}.png` });
    }
    await other.close();
  }
  isRunning = false;
  await again;
  await browser.close();
  assert.deepEqual(problems, []);
  console.log('ok');
};

main().catch((error) => { console.error(error); process.exit(1); });
