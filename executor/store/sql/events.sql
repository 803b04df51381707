-- What readers of a job's history ask.

-- name: newest
-- The seq of the last event of a tenant's job.
select seq from dw_jobs where id = $1 and tenant = $2

-- name: watch
-- From now on whoever writes to the job notifies its readers. What was written before is read after this; what is
-- written at the same time waits for the row, and then knows.
update dw_jobs set watched = true where id = $1 and not watched and ended_at is null

-- name: page
-- The public events after a seq, oldest first: $3 at most, and no more than $4 bytes where that is more than one. The
-- job's own columns stand on each row, in one snapshot with the events: has it ended, there is nothing behind `last`
-- (which may lie beyond the last public event). A row without a seq: no events. No row: no such job.
with newer as (
    select seq, ts, channel, step_id, payload from dw_events
    where job = $1 and seq > $2 and public
    order by seq limit $3
), sized as (
    select *, sum(octet_length(payload::text)) over (order by seq) as bytes, row_number() over (order by seq) as place
    from newer
)
select job.seq as last, job.ended_at is not null as ended, (select count(*) from sized) as found,
    sized.seq, sized.ts, sized.channel, sized.step_id, sized.payload
from dw_jobs job left join sized on bytes <= $4 or place = 1
where job.id = $1
order by sized.seq
