"""Recomputes both chains of a ledger with nothing of Postonce; ARCHITECTURE.md defines them under "Two chains".
usage: audit.py BROKERS TOPIC DATABASE_URL        needs: pip install kafka-python lz4 'psycopg[binary]'"""
import hashlib, sys, kafka, psycopg

brokers, topic, url = sys.argv[1:]
sha = lambda *parts: hashlib.sha256(b"".join(parts)).digest()
int8 = lambda number: number.to_bytes(8, "big", signed=True)
text = lambda data: b"\xff" * 4 if data is None else len(data).to_bytes(4, "big") + data
hashed = lambda data: bytes(32) if data is None else sha(data)
micros = lambda column: f"coalesce((extract(epoch FROM {column}) * 1000000)::bigint, -1)"
event = f"message_offset, {micros('updated_at')}, event_id, uuid_send(resource_id), uuid_send(fingerprint), {micros('message_time')}"
within = "WHERE stream = %s AND message_offset >= %s AND message_offset < %s"
rows = (f"SELECT {event}, 'E' || outcome::text, state, source FROM events {within} UNION ALL "
        f"SELECT {event}, 'C', encode(sha256(value), 'hex'), source FROM conflicts {within} ORDER BY 1")
postings = f"SELECT message_offset, line, uuid_send(debit), uuid_send(credit), amount, {micros('effective_at')} FROM postings {within} ORDER BY 1, 2"
db = psycopg.connect(url, options="-c search_path=postonce -c default_transaction_isolation=repeatable\\ read")
for stream, partition, first, end, held, head in db.execute(
        "SELECT stream, partition, first_offset, next_offset, message_chain, batch_chain FROM streams WHERE topic = %s AND NOT replay", [topic]).fetchall():
    chain, batches = bytes(32), bytes(32)
    reader = kafka.KafkaConsumer(bootstrap_servers=brokers, isolation_level="read_committed")
    reader.assign([place := kafka.TopicPartition(topic, partition)])
    reader.seek(place, first)
    while reader.position(place) < end:
        for one in sum(reader.poll(1000).values(), []):
            if one.offset < end:
                headers = b"".join(text(name.encode()) + text(value) for name, value in one.headers)
                chain = sha(chain, int8(one.offset), hashed(one.key), hashed(one.value), sha(headers))
    seq = 0
    for seq, start, stop, outcomes, messages, previous, own in db.execute(
            "SELECT seq, from_offset, next_offset, outcomes, message_chain, previous_hash, hash FROM batches WHERE stream = %s ORDER BY seq", [stream]).fetchall():
        data = [b"postonce:batch:v1\n", batches, *map(int8, (stream, seq, start, stop, len(outcomes))), outcomes, messages]
        for offset, at, event_id, resource, fingerprint, time, what, state, source in db.execute(rows, [stream, start, stop] * 2).fetchall():
            middle = what[1:].encode() + text(state.encode()) if what[0] == "E" else bytes.fromhex(state)
            data += [what[:1].encode(), int8(offset), int8(at), event_id, resource, fingerprint, int8(time), middle, text(source and source.encode())]
        for offset, line, debit, credit, amount, at in db.execute(postings, [stream, start, stop]).fetchall():
            data += [b"P", int8(offset), line.to_bytes(2, "big"), debit, credit, int8(amount), int8(at)]
        batches = sha(*data)
        assert (previous, own) == (data[1], batches), f"partition {partition}: batch {seq} is not what its rows say"
    assert (chain, batches) == (held, head), f"partition {partition}: the topic or the batches say otherwise"
    print(f"partition {partition}: offsets {first} to {end}, {seq} batches: both chains hold")
