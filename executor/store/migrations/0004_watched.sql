-- Whether anybody has ever followed a job's events: only then is it told that there are new ones. A notification wakes
-- every listening session of the database, whatever it listens to; most jobs are never followed.

alter table dw_jobs add column watched boolean not null default false;

update dw_jobs set watched = true where ended_at is null;
