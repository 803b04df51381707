-- API keys, each of which is a tenant.

-- name: valid
-- Always a row: whether there ever was a key (then every request needs one); and of these hashes of keys ($1) and
-- sessions ($2) those that are valid, with their keys.
select exists (select from dw_keys) as configured, found.*
from (select 1) one
left join (
    select hash, false as session, id, name, limits from dw_keys
    where hash = any ($1::bytea[]) and revoked_at is null
    union all
    select s.hash, true, k.id, k.name, k.limits from dw_sessions s join dw_keys k on k.id = s.key
    where s.hash = any ($2::bytea[]) and s.expires_at > now() and k.revoked_at is null
) found on true

-- name: create
insert into dw_keys (id, name, hash, limits) values ($1, $2, $3, $4)
returning id, name, limits, created_at, revoked_at, pg_notify('dw_keys', '')

-- name: list
select id, name, limits, created_at, revoked_at from dw_keys order by created_at, id

-- name: revoke
-- A key that is revoked stays in the list: the service never becomes open again because of it.
update dw_keys set revoked_at = coalesce(revoked_at, now()) where id = $1
returning id, name, limits, created_at, revoked_at, pg_notify('dw_keys', '')

-- name: any
select exists (select from dw_keys) as configured

-- name: open_session
insert into dw_sessions (hash, key, expires_at) values ($1, $2, now() + make_interval(secs => $3)) returning expires_at

-- name: close_session
with ended as (delete from dw_sessions where hash = $1 or expires_at < now() returning 1)
select pg_notify('dw_keys', '') from ended limit 1
