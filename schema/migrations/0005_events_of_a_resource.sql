-- The events of a resource, found without an index of their own: each that became the
-- state says when the one before it was. An index on resource_id, a random hash, touched a
-- page of its own for each event, and cost a fifth of what Postgres does for one.
--
--   resources.updated_at ──► its event ──previous_at──► the one before ──► … ──► NULL
--
-- Superseded events displaced nothing and hang on no such chain. They are few, and have a
-- small index; conflicts have theirs.

-- Alone with `events` until the end: a batch that has written its events and not yet its
-- resources would show the one without the other, and the UPDATE below would link the
-- chain past it.
LOCK TABLE events IN ACCESS EXCLUSIVE MODE;
DROP INDEX events_resource;

-- updatedAt of the state that this event displaced; NULL where it was the resource's first,
-- and for superseded events. A conflict that came to stand has the id, and so the time, of
-- the event before it: the chain passes over it. It depends on the order of arrival, so it
-- is no part of the batch chain and of no comparison with a ledger built anew; `verify`
-- proves it by itself.
ALTER TABLE events ADD COLUMN previous_at timestamptz;

-- What is there already: in which order it came is not known any more, and any chain that
-- begins at the resource's state and comes to every event will do. Events of one time are
-- neighbours then, and point to their own time: whoever follows the chain reads all
-- events of a time together, and goes to no time twice.
ALTER TABLE events DISABLE TRIGGER events_append_only;
-- In the order of the table: the new rows keep it, and events_offset lives on that. With
-- these off the rows are found one by one by their place (ctid).
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
UPDATE events e
SET previous_at = o.previous_at
FROM (SELECT e.ctid AS place,
             lead(e.updated_at) OVER (PARTITION BY e.resource_id
                                      ORDER BY e.updated_at = r.updated_at DESC, e.updated_at DESC) AS previous_at
      FROM events e JOIN resources r USING (resource_id) WHERE e.outcome <> 'S' ORDER BY e.ctid) o
WHERE e.ctid = o.place AND o.previous_at IS NOT NULL;
ALTER TABLE events ENABLE TRIGGER events_append_only;

CREATE INDEX events_superseded ON events (resource_id) WHERE outcome = 'S';
