-- Sets what an operator has decided about a tenant. ARGV: tenant ('*' for every one), settings (JSON;
-- '' to forget them), a new version
if ARGV[2] == '' then redis.call('HDEL', ns .. 'tenants', ARGV[1])
else redis.call('HSET', ns .. 'tenants', ARGV[1], ARGV[2]) end
redis.call('SET', ns .. 'tenants-version', ARGV[3])
return 1
