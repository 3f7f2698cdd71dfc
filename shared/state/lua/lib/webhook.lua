-- Webhook endpoints. An endpoint's deliveries wait in its queue by the time of their next attempt, and
-- move to its claims by the end of their lease. `webhooks-due` says when to look at each endpoint next.

local function webhook_key(id) return ns .. 'webhook:' .. id end
local function queue_key(endpoint) return ns .. 'webhook-queue:' .. endpoint end
local function claims_key(endpoint) return ns .. 'webhook-claims:' .. endpoint end
