-- How two tables lie on the disk. Nothing that a query could see.

-- A payment's postings share their key, and where such pairs are folded into one entry the
-- entries of a page differ in length. Postgres then no longer sees that each stream grows at
-- an end of its own, splits pages in their middle and leaves them two thirds full: 80 bytes
-- for each payment instead of 63, and 34 more of WAL.
ALTER INDEX postings_offset SET (deduplicate_items = off);

-- A page of forty resources keeps room for four new states. More of them at once, and a row
-- moves to another page and takes its index entry along; less room was never missed.
ALTER TABLE resources SET (fillfactor = 90);
