// The dashboard. It shows what GET /v1/events sends, and asks /v1/lookup and /v1/reset.
'use strict';
(() => {
  const $ = (id) => document.getElementById(id);
  const HISTORY = 600; // seconds in the chart, so that a page left open does not grow
  const ROWS = 100; // policies shown at a time
  let token = sessionStorage.getItem('tidegate-token') || '';
  let summary = null;
  let selected = null; // the key whose details are shown
  let history = [];

  const number = (n) => {
    if (n === null || n === undefined) return '–';
    if (n > 0 && n < 0.1) return '< 0.1';
    if (n < 100) return String(Math.round(n * 10) / 10);
    return Math.round(n).toLocaleString('en');
  };
  const duration = (s) => {
    if (s === null || s === undefined) return '–';
    if (s < 1) return `${Math.ceil(s * 1000)} ms`;
    if (s < 60) return `${Math.ceil(s)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${Math.ceil(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  };
  const headers = () => (token ? { authorization: `Bearer ${token}` } : {});
  const element = (name, text, className) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  // The chart.
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let chart = null;
  const drawChart = () => {
    const rows = history;
    const data = [rows.map((r) => r[0]), rows.map((r) => r[1]), rows.map((r) => r[2])];
    if (!chart) {
      const axis = () => ({ stroke: style('--faint'), grid: { stroke: style('--line'), width: 1 }, ticks: { stroke: style('--line') } });
      const line = (label, color) => ({ label, stroke: style(color), fill: `${style(color)}22`, width: 2, points: { show: false } });
      chart = new uPlot({
        width: $('chart').clientWidth || 600, height: 220,
        cursor: { drag: { setScale: false } },
        scales: { y: { range: (u, min, max) => [0, Math.max(1, max * 1.1)] } },
        axes: [axis(), axis()],
        series: [{ label: 'time' }, line('allowed', '--allowed'), line('denied', '--denied')],
      }, data, $('chart'));
    } else {
      chart.setData(data);
    }
  };
  const redraw = () => { if (chart) { chart.destroy(); chart = null; } if (history.length) drawChart(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  new ResizeObserver(() => { if (chart) chart.setSize({ width: $('chart').clientWidth, height: 220 }); }).observe($('chart'));

  // Tables. Rows are reused, so that the focus stays where it is.
  const fill = (table, rows, cells, empty, onClick) => {
    const body = $(table).tBodies[0];
    if (rows.length === 0) {
      const row = element('tr');
      const cell = element('td', empty, 'empty');
      cell.colSpan = $(table).tHead.rows[0].cells.length;
      row.append(cell);
      body.replaceChildren(row);
      return;
    }
    if (body.querySelector('.empty')) body.replaceChildren();
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((item, index) => {
      const texts = cells(item);
      let row = body.rows[index];
      if (!row) {
        row = body.insertRow();
        texts.forEach(() => row.insertCell());
        if (onClick) {
          row.tabIndex = 0;
          row.setAttribute('role', 'button');
          row.addEventListener('click', () => onClick(row.item));
          row.addEventListener('keydown', (event) => {
            if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); onClick(row.item); }
          });
        }
      }
      row.item = item;
      texts.forEach((text, column) => {
        const cell = row.cells[column];
        const isText = typeof text === 'string' && column < 2 && onClick ? true : column === 0;
        if (cell.textContent !== text) cell.textContent = text;
        cell.className = isText ? 'text' : '';
      });
    });
  };

  const keyId = (item) => JSON.stringify([item.policy, item.tenant, item.key]);
  const freeIn = (item) => {
    if (!item.is_denied) return 'now';
    if (item.free_in_s === null) return 'never';
    return item.free_in_s === 0 ? 'now' : duration(item.free_in_s);
  };
  const showDetail = (item) => {
    selected = keyId(item);
    $('detail').hidden = false;
    renderDetail(item);
    $('detail').focus();
    $('detail').scrollIntoView({ block: 'nearest' });
  };
  const renderDetail = (item) => {
    $('detail-title').textContent = item.key;
    const facts = [
      ['Policy', item.policy], ['Tenant', item.tenant || '–'],
      ['Denied by', item.limit || (item.since_s === null ? 'not denied' : 'the failure policy')],
      ['First denied', item.since_s === null ? '–' : `${duration(item.since_s)} ago`],
      ['Free in', freeIn(item)],
      ['Requests / s', number(item.requests)], ['Denied / s', number(item.denied)],
      ['After a denial', item.behavior === 'hammers' ? 'hammers: sends before it may' : item.behavior === 'obeys' ? 'obeys Retry-After' : 'unknown'],
    ];
    $('detail-list').replaceChildren(...facts.map(([name, value]) => {
      const row = element('div');
      row.append(element('dt', name), element('dd', value));
      return row;
    }));
    $('detail-use').hidden = !summary.shows_keys;
    $('detail-use').onclick = () => {
      $('lookup-policy').value = item.policy.replace(/^\((.*)\)$/, '$1');
      $('lookup-key').value = item.key;
      $('lookup-tenant').value = item.tenant || '';
      $('lookup').requestSubmit();
    };
  };
  $('detail-close').onclick = () => { $('detail').hidden = true; selected = null; };

  const candidate = (policy) => {
    if (!policy.candidate) return '–';
    const difference = policy.candidate.denied - policy.denied;
    const sign = difference > 0 ? '+' : '';
    return `${number(policy.candidate.denied)} denied / s (${sign}${Math.round(difference * 10) / 10})`;
  };

  const renderPolicies = () => {
    const wanted = $('filter').value.toLowerCase();
    const matching = summary.policies.filter((policy) => policy.policy.toLowerCase().includes(wanted));
    fill('policies', matching.slice(0, ROWS), (policy) => [
      policy.policy, number(policy.allowed), number(policy.denied), number(policy.near_limit),
      number(policy.degraded), number(policy.shadow_denied), candidate(policy),
    ], wanted ? 'No busy policy has this name.' : 'No policies are configured.');
    const more = summary.policy_count - Math.min(matching.length, ROWS);
    $('policies-note').textContent = more > 0 && !wanted ? `The busiest ${Math.min(matching.length, ROWS)} of ${summary.policy_count}.` : '';
    const names = summary.policies.slice(0, ROWS).map((policy) => policy.policy);
    if ($('policy-names').childElementCount !== names.length) {
      $('policy-names').replaceChildren(...names.map((name) => { const option = element('option'); option.value = name; return option; }));
    }
  };
  $('filter').addEventListener('input', () => { if (summary) renderPolicies(); });

  const render = (next) => {
    summary = next;
    if (next.history && next.history.length) {
      history = next.history.slice(-HISTORY);
    } else {
      history.push([Math.floor(next.at_ms / 1000), next.totals.allowed, next.totals.denied, next.totals.near_limit, next.totals.degraded]);
      if (history.length > HISTORY) history.splice(0, history.length - HISTORY);
    }
    const totals = next.totals;
    $('allowed').textContent = number(totals.allowed);
    $('denied').textContent = number(totals.denied);
    $('near').textContent = number(totals.near_limit);
    $('degraded').textContent = number(totals.degraded);
    $('chart-text').textContent = `Now ${number(totals.allowed)} allowed and ${number(totals.denied)} denied per second.`;
    drawChart();
    const keys = next.store.keys === null ? '' : `, ${next.store.keys.toLocaleString('en')} keys`;
    const breaker = next.store.breaker ? `, breaker ${next.store.breaker}` : '';
    $('store').textContent = `${next.store.url} ${next.store.state}${breaker}${keys}`;
    const loaded = Math.max(0, next.at_ms / 1000 - next.config.loaded_at_s);
    $('config').textContent = `${next.config.hash.slice(0, 12)}, loaded ${duration(loaded)} ago`;
    $('uptime').textContent = duration(next.uptime_s);
    const notices = [];
    if (next.store.state !== 'ok') notices.push(`Store unavailable, the failure policy decides. ${next.store.last_error || ''}`);
    if (next.config.is_rejected) notices.push('The last configuration was invalid; an earlier one is in use. See the log.');
    $('notice').hidden = notices.length === 0;
    $('notice').textContent = notices.join(' ');
    const share = next.top3_share === null ? '' : `The first three have ${Math.round(next.top3_share * 100)} % of all denials: ${next.top3_share > 0.5 ? 'a few clients send too much' : 'many clients are denied, the limit may be too low'}. `;
    const waiting = next.denied.length ? `${next.obeying} wait for Retry-After, ${next.hammering} do not.` : '';
    $('denied-note').textContent = share + waiting;
    fill('denied-keys', next.denied, (item) => [item.key, item.policy, number(item.denied), freeIn(item)], 'No key is denied.', showDetail);
    fill('busy-keys', next.busiest, (item) => [item.key, item.policy, number(item.requests), number(item.denied)], 'No requests.', showDetail);
    if (selected) {
      const item = [...next.denied, ...next.busiest].find((other) => keyId(other) === selected);
      if (item) renderDetail(item);
    }
    $('reset').disabled = next.read_only;
    $('reset').title = next.read_only ? 'Resets are refused (admin.read_only)' : '';
    renderPolicies();
  };

  // Look-ups and resets.
  const target = () => {
    const policy = $('lookup-policy').value.trim();
    const body = { key: $('lookup-key').value };
    body[/[\s/;]/.test(policy) ? 'limits' : 'policy'] = policy;
    if ($('lookup-tenant').value) body.tenant = $('lookup-tenant').value;
    if ($('lookup-tier').value) body.tier = $('lookup-tier').value;
    return body;
  };
  const ask = async (path, body) => {
    const response = await fetch(path, {
      method: 'POST', headers: { 'content-type': 'application/json', ...headers() }, body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.detail || response.statusText);
    return answer;
  };
  const sentence = (answer) => {
    if (answer.limit === null) return answer.allowed ? 'Unlimited.' : 'Blocked.';
    const left = `${answer.remaining} of ${answer.limit} left, all free in ${duration(answer.reset_after_us / 1e6)}`;
    if (answer.allowed) return `Allowed; ${left}.`;
    const retry = answer.retry_after_us === null ? 'never allowed' : `free in ${duration(answer.retry_after_us / 1e6)}`;
    return `Denied${answer.denied_by ? ` by ${answer.denied_by}` : ''}, ${retry}; ${left}.`;
  };
  const answered = async (path, body, prefix) => {
    $('lookup-result').className = '';
    try {
      const answer = await ask(path, body);
      $('lookup-result').textContent = prefix(answer) + sentence(answer);
    } catch (error) {
      $('lookup-result').className = 'error';
      $('lookup-result').textContent = error.message;
    }
  };
  $('lookup').addEventListener('submit', (event) => {
    event.preventDefault();
    answered('/v1/lookup', target(), () => '');
  });
  $('reset').addEventListener('click', () => {
    if (!$('lookup').reportValidity()) return;
    answered('/v1/reset', target(), (answer) => (answer.reset ? 'Reset. ' : 'Nothing to reset. '));
  });

  // Events over fetch, because an EventSource cannot send a token.
  const state = (text, className) => { $('connection').textContent = text; $('connection').className = `badge ${className}`; };
  let wait = 1000;
  const listen = async () => {
    const response = await fetch('/v1/events', { headers: headers(), cache: 'no-store' });
    if (response.status === 401 || response.status === 403) {
      state('token needed', 'lost');
      $('login').hidden = false;
      $('login-error').textContent = token ? 'This token is not accepted.' : '';
      $('token').focus();
      return false;
    }
    if (!response.ok) throw new Error(response.statusText);
    $('login').hidden = true;
    state('live', 'live');
    wait = 1000;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return true;
      buffer += value;
      const events = buffer.split('\n\n');
      buffer = events.pop();
      const last = events.filter((event) => event.startsWith('data: ')).pop();
      if (last) render(JSON.parse(last.slice(6)));
    }
  };
  const run = async () => {
    for (;;) {
      try {
        if (!(await listen())) return;
      } catch (error) { /* the server is away */ }
      state('connection lost, retrying', 'lost');
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 15000);
    }
  };
  $('login').addEventListener('submit', (event) => {
    event.preventDefault();
    token = $('token').value.trim();
    sessionStorage.setItem('tidegate-token', token);
    $('token').value = '';
    run();
  });
  run();
})();
