"""Recomputes every event id of event_ids.json with nothing but Python, and one with a shell."""
import datetime, hashlib, json, pathlib, re, subprocess
TIME = re.compile(r"(....-..-..)[Tt](..:..:..)(?:\.(\d+))?([Zz]|[+-]..:..)")
vectors = json.loads(pathlib.Path(__file__).with_name("event_ids.json").read_text("utf-8"))
failed = []
for v in vectors:
    day, clock, fraction, offset = TIME.fullmatch(v["updatedAt"]).groups()
    at = datetime.datetime.fromisoformat(f"{day}T{clock}{offset.upper().replace('Z', '+00:00')}").astimezone(datetime.timezone.utc)
    at = f"{at:%Y-%m-%dT%H:%M:%S}.{(fraction or '').ljust(6, '0')[:6]}Z"  # exactly six decimals: cut, never rounded
    event_id = "evt_" + hashlib.sha256(f"postonce:v1\n{v['type']}\n{v['resource']}\n{at}".encode()).hexdigest()
    if (at, event_id) != (v["normalised"], v["eventId"]): failed.append(f"{v}\n  computed {at} {event_id}")
shell = subprocess.run(["sh", "-c", r"printf 'postonce:v1\n%s\n%s\n%s' 'payment.succeeded' 'stripe/acct_1/pi_3Nf' '2026-01-02T03:04:05.123456Z' | { sha256sum || shasum -a 256; }"], capture_output=True, text=True).stdout
if "evt_" + shell[:64] != vectors[0]["eventId"]: failed.append(f"printf | sha256sum gave {shell!r}, {vectors[0]}")
print(*failed, f"{len(vectors) + 1 - len(failed)} passed, {len(failed)} failed", sep="\n")
raise SystemExit(bool(failed))
