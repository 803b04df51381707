-- What is asked of PgQueuer's tables beside PgQueuer.

-- name: beat
-- A sign of life of all that a worker has taken.
update pgqueuer set heartbeat = now() where queue_manager_id = $1 and status = 'picked'

-- name: prune
-- Of the $2 oldest rows of the table of what was done those that are older than $1 seconds go.
delete from pgqueuer_log where id in (
    select id from (select id, created from pgqueuer_log order by id limit $2) oldest
    where created < now() - make_interval(secs => $1)
)

-- name: prune_statistics
delete from pgqueuer_statistics where id in (
    select id from (select id, created from pgqueuer_statistics order by id limit $2) oldest
    where created < now() - make_interval(secs => $1)
)
