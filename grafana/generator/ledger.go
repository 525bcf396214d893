package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// ledger shows the books themselves, by the reader's role: views and functions of
// schema/migrations/0002_views.sql and 0008_watch.sql, which say what each of them reads.
func ledger() dashboard.Dashboard {
	made := base(ledgerUID, "Postonce / Ledger",
		"What stands in the books, from Postgres: balances, statements, what was refused, what a person should look at. Amounts are in minor units: 1234 EUR is 12.34 €.")
	// A person reads here; the books need not be asked every ten seconds.
	made.Refresh, made.Time = to("1m"), &dashboard.DashboardDashboardTime{From: "now-24h", To: "now"}
	made.Templating = dashboard.DashboardDashboardTemplating{List: []dashboard.VariableModel{
		datasourceVariable(postgresType),
		{
			Type: dashboard.VariableTypeTextbox, Name: "prefix", Label: to("Accounts from"),
			Description: to("The beginning of the accounts' paths: liabilities:merchant: for what is owed to merchants."),
			Query:       &dashboard.StringOrMap{String: to("assets:")},
		},
		sqlVariable("asset", "Asset", "Currencies and other units.", true, "SELECT asset FROM postonce.trial_balance ORDER BY asset"),
		sqlVariable("account", "Account", "Whose statement: one of the first 500 with that beginning.", false,
			"SELECT account || ' ' || asset FROM postonce.account_balances WHERE account ^@ ${prefix:sqlstring} "+
				"AND asset IN (${asset:sqlstring}) ORDER BY account, asset LIMIT 500"),
	}}
	made.Panels = place([]section{
		{"Is the ledger whole?", isItWhole()},
		{"Accounts", accounts()},
		{"Money posted", moneyPosted()},
		{"What is refused?", openQuarantine()},
		{"What wants a person?", wantsAPerson()},
	}, nil)
	return made
}

func sqlVariable(name, label, description string, many bool, sql string) dashboard.VariableModel {
	made := queryVariable(name, label, description, sql)
	made.Datasource = source(postgresType)
	made.AllValue, made.Sort = nil, to(dashboard.VariableSortDisabled)
	if !many {
		made.Multi, made.IncludeAll, made.Current = to(false), to(false), nil
	}
	return made
}

func rows(sql string) []query { return []query{{sql: sql}} }

func isItWhole() []panel {
	return []panel{
		{
			kind: "stat", title: "Trial balance", unit: "short", width: 4, height: 7,
			description: "Assets in which debits and credits differ. A posting is one row of both sides, so anything but 0 is an edited or damaged balance: run `postonce verify`.",
			queries:     rows("SELECT count(*) AS unbalanced FROM postonce.trial_balance WHERE difference <> 0"),
			thresholds:  thresholds("green", from(1, "red")),
			words:       map[string]word{"0": {"balanced", "green"}},
		},
		{
			kind: "table", title: "Trial balance by asset", unit: "locale", width: 8, height: 7,
			description: "Sum of all debits and of all credits of each asset, in minor units. The difference must be 0.",
			queries:     rows("SELECT asset, debits, credits, difference FROM postonce.trial_balance ORDER BY asset"),
		},
		{
			kind: "table", title: "Last commit of each partition", unit: "none", width: 12, height: 7,
			description: "The ledger's own word on whether money is posted: how far each partition is, and when it was last committed. A topic id that is not the live one has its own rows.",
			queries: rows("SELECT topic, partition, next_offset, batch_seq AS batches, last_commit, claimed_at AS owner_since " +
				"FROM postonce.stream_commits ORDER BY last_commit DESC NULLS LAST, topic, partition LIMIT 500"),
		},
		{
			kind: "table", title: "Verifications", unit: "none", width: 12, height: 6,
			description: "The last runs of `postonce verify`. `deep` has read the topic, too; `since_last` only what was new.",
			queries: rows("SELECT finished_at, extract(epoch FROM took)::float8 AS seconds, deep, since_last, findings, offsets " +
				"FROM postonce.verification_runs ORDER BY finished_at DESC LIMIT 20"),
			columns: map[string]string{"seconds": "s", "offsets": "locale"},
			empty:   "never run",
		},
		{
			kind: "table", title: "Offsets accepted as lost", unit: "locale", width: 12, height: 6,
			description: "Messages that retention deleted before they were read, and who has gone on without them (`--accept-gap`). Their money is missing unless upstream has sent it again.",
			queries: rows("SELECT acted_at, person, why, topic, partition, from_offset, to_offset, offsets " +
				"FROM postonce.accepted_gaps ORDER BY acted_at DESC LIMIT 100"),
			columns: map[string]string{"partition": "none"},
			empty:   "none",
		},
	}
}

func accounts() []panel {
	return []panel{
		{
			kind: "table", title: "Balances", unit: "locale", width: 12, height: 12,
			description: "Accounts whose path begins as said above. Balance is debits less credits, in minor units: what is owed to others is negative. The first 1,000.",
			queries: rows("SELECT account, asset, debits, credits, balance FROM postonce.account_balances " +
				"WHERE account ^@ ${prefix:sqlstring} AND asset IN (${asset:sqlstring}) ORDER BY account, asset LIMIT 1000"),
		},
		{
			kind: "table", title: "Statement of $account", unit: "locale", width: 12, height: 12,
			description: "The newest 200 postings before the end of the time range, with the balance after each, in minor units: `postonce statement` has all of them.",
			// An account's path has no space in it.
			queries: rows("SELECT effective_at, event_type, resource, counter_account, amount, balance, posting, event_id, recorded_at " +
				"FROM postonce.account_statement(split_part(${account:sqlstring}, ' ', 1), split_part(${account:sqlstring}, ' ', 2), $__timeTo(), 200)"),
		},
	}
}

func moneyPosted() []panel {
	return []panel{{
		kind: "bars", title: "Money posted in each hour by kind", unit: "locale", width: 24, height: 9, log: true,
		description: "Minor units that postings have moved, by the hour of their commit. The newest 100,000 offsets of the time range: an hour that is cut there says so. A busy ledger's long times are on Overview.",
		queries: rows("SELECT hour AS time, kind || ' ' || asset || CASE WHEN whole THEN '' ELSE ' (part of the hour)' END AS metric, " +
			"amount::float8 AS value FROM postonce.posted_by_hour($__timeFrom(), $__timeTo()) WHERE asset IN (${asset:sqlstring}) ORDER BY 1, 2"),
	}}
}

func openQuarantine() []panel {
	return []panel{
		{
			kind: "table", title: "Open quarantine by code", unit: "locale", width: 6, height: 10,
			description: "Refused messages that nobody has sent again or dismissed. Reads every open one.",
			queries: rows("SELECT code, count(*) AS messages, sum(times_seen) AS times_seen, min(first_seen) AS since " +
				"FROM postonce.quarantine_cases GROUP BY code ORDER BY messages DESC"),
			empty: "none",
		},
		{
			kind: "table", title: "Open quarantine", unit: "locale", width: 18, height: 10,
			description: "The newest 200, with the place and the reason that tell the producer what to change. `postonce quarantine show MESSAGE` has the bytes; they are not shown here.",
			queries: rows("SELECT first_seen, code, place, reason, message, first_place, times_seen, bytes, message_time, last_seen " +
				"FROM postonce.quarantine_cases ORDER BY first_seen DESC LIMIT 200"),
			columns: map[string]string{"bytes": "bytes"},
			empty:   "none",
		},
	}
}

func wantsAPerson() []panel {
	return []panel{
		{
			kind: "table", title: "Conflicts, both versions", unit: "none", width: 24, height: 9,
			description: "One event id, two contents: where each came from, what each has moved (credit → debit), and which stands. The way to correct it is an event with a later updatedAt. The newest 100 that are open.",
			queries: rows("SELECT opened_at, event_type, resource, updated_at, stands, first_place, first_source, first_moved, " +
				"second_place, second_source, second_says, second_moved, event_id " +
				"FROM postonce.conflict_versions WHERE closed_at IS NULL ORDER BY opened_at DESC LIMIT 100"),
			empty: "none",
		},
		{
			kind: "table", title: "Resources whose state regressed", unit: "none", width: 24, height: 9,
			description: "Somebody has said a lower state at a later time, such as succeeded after reversed. The higher state stands in the books. The newest 100 that are open.",
			queries: rows("SELECT opened_at, kind, resource, arrived_state, arrived_time, standing_state, standing_time, place, detail " +
				"FROM postonce.regressions WHERE closed_at IS NULL ORDER BY opened_at DESC LIMIT 100"),
			empty: "none",
		},
	}
}
