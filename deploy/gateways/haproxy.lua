-- Asks Tidegate before a request goes on. HAProxy >= 2.5 (core.httpclient), no other Lua module.
--   http-request lua.tidegate http://127.0.0.1:8111/v1/forward-auth?policy=api      (8111: the inner frontend, see haproxy.cfg)
-- sets txn.tg_status, txn.tg_retry, txn.tg_rl, txn.tg_policy, txn.tg_body; 0 in tg_status: not reached.
core.register_action("tidegate", { "http-req" }, function(txn, url)
  local h = {
    ["x-forwarded-for"]    = { txn.sf:src() },
    ["x-forwarded-method"] = { txn.sf:method() },
    ["x-forwarded-host"]   = { txn.sf:req_fhdr("host") or "" },
    ["x-forwarded-uri"]    = { txn.sf:url() },
    ["x-forwarded-proto"]  = { txn.sf:ssl_fc() == 1 and "https" or "http" },
  }
  -- The header that forward_auth.key_header names, and the mark of a preflight.
  for _, name in ipairs({ "x-api-key", "access-control-request-method" }) do
    local value = txn.sf:req_fhdr(name)
    if value and value ~= "" then h[name] = { value } end
  end
  -- The inner frontend answers within 200 ms; this client would try a shorter timeout four times.
  local r = core.httpclient():get{ url = url, headers = h, timeout = 1000 }
  local function first(n) local v = r and r.headers and r.headers[n]; return v and v[0] or "" end
  txn:set_var("txn.tg_status", r and tonumber(r.status) or 0)
  txn:set_var("txn.tg_retry",  first("retry-after"))
  txn:set_var("txn.tg_rl",     first("ratelimit"))
  txn:set_var("txn.tg_policy", first("ratelimit-policy"))
  txn:set_var("txn.tg_body",   r and r.body or "")
end, 1)
