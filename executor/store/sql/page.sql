-- What the page's drawing asks.

-- name: plans
-- The plans of a job's first $2 rounds, in their order.
select payload from dw_events where job = $1 and channel = 'plan' and (payload ->> 'round')::int <= $2 order by seq
