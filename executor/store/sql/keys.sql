-- API keys, each of which is a tenant.

-- name: of_request
-- Always a row: whether there ever was a key (then every request needs one), and the valid key of this hash, by header
-- ($1) or by session ($2), if there is one.
select exists (select from dw_keys) as configured, k.id, k.name, k.limits
from (select 1) one
left join dw_keys k on k.revoked_at is null and (
    k.hash = $1
    or k.id = (select key from dw_sessions where hash = $2 and expires_at > now())
)

-- name: create
insert into dw_keys (id, name, hash, limits) values ($1, $2, $3, $4) returning id, name, limits, created_at, revoked_at

-- name: list
select id, name, limits, created_at, revoked_at from dw_keys order by created_at, id

-- name: revoke
-- A key that is revoked stays in the list: the service never becomes open again because of it.
update dw_keys set revoked_at = coalesce(revoked_at, now()) where id = $1
returning id, name, limits, created_at, revoked_at

-- name: any
select exists (select from dw_keys) as configured

-- name: open_session
insert into dw_sessions (hash, key, expires_at) values ($1, $2, now() + make_interval(secs => $3)) returning expires_at

-- name: close_session
delete from dw_sessions where hash = $1 or expires_at < now()
