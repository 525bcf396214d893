package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// overview answers, from top to bottom: is money posted, how late is it, what is refused, is
// anything doubled or lost, where does the time go.
func overview() dashboard.Dashboard {
	made := base(overviewUID, "Postonce / Overview",
		"Is money posted, how late is it, what is refused, is anything doubled or lost, where does the time go: "+
			"the questions of whoever is on call, in this order. Every panel leads to Stream detail.")
	made.Templating, made.Annotations = chosenConsumers(), events()
	made.Panels = place([]section{
		{"At a glance", bigFigures()},
		{"Is money posted?", isMoneyPosted()},
		{"How late is it?", howLate()},
		{"What is refused?", whatIsRefused()},
		{"Is anything doubled or lost?", doubledOrLost()},
		{"Where does the time go?", whereTimeGoes()},
	}, []dashboard.DashboardLink{inDetail()})
	return made
}

func bigFigures() []panel {
	figure := func(p panel) panel {
		p.kind, p.width, p.height = "stat", 4, 5
		return p
	}
	verified := own("postonce_verify_last_findings")
	return []panel{
		figure(panel{
			title: "Events per second", unit: "mps", decimal: to(0.0),
			description: "Messages with a committed outcome, of all outcomes. 0 is right only where nothing comes: look at the lag beside it.",
			queries:     one("sum("+rate(own("postonce_events_total"))+")", "events"),
			thresholds:  thresholds("orange", from(0.01, "green")),
		}),
		figure(panel{
			title: "End to end, p99", unit: "s",
			description: "99 of 100 messages were committed within this time after their Kafka timestamp. The objective is 99.9 % within 5 s.",
			queries:     one(quantile(0.99, "postonce_end_to_end_seconds", ""), "p99"),
			thresholds:  thresholds("green", from(1, "orange"), from(5, "red")),
			empty:       "no traffic",
		}),
		figure(panel{
			title: "Lag", unit: "s",
			description: "Age of the oldest message that has no outcome yet, by its Kafka timestamp: so late are the balances that people see.",
			queries:     one("max("+part("postonce_oldest_unposted_seconds")+")", "lag"),
			thresholds:  thresholds("green", from(5, "orange"), from(60, "red")),
		}),
		figure(panel{
			title: "Conflicts open", unit: "short",
			description: "Events that came twice with different content, and that nobody has closed. Both versions are kept and one of them stands in the books: a person must say which is right.",
			queries:     one(`max(`+own("postonce_incidents_open", `code="conflict"`)+`) or vector(0)`, "conflicts"),
			thresholds:  thresholds("green", from(1, "orange"), from(100, "red")),
		}),
		figure(panel{
			title: "Quarantine open", unit: "short",
			description: "Refused messages that nobody has sent again or dismissed: money that upstream has told of and the books do not have.",
			queries:     one(`sum(max by (code) (`+own("postonce_quarantine_open")+`)) or vector(0)`, "open"),
			thresholds:  thresholds("green", from(1, "orange"), from(100, "red")),
		}),
		figure(panel{
			title: "Verify", unit: "short",
			description: "The last run of `postonce verify`: findings, or whether it is more than two days old. A finding means that the tables contradict each other.",
			queries: one("(max("+verified+") > 0) or (0 - (time() - max("+
				own("postonce_verify_last_finished_timestamp_seconds")+") > bool 172800))", "findings"),
			thresholds: thresholds("orange", from(0, "green"), from(1, "red")),
			words:      map[string]word{"0": {"ok", "green"}, "-1": {"too old", "orange"}},
			empty:      "never run",
		}),
	}
}

func isMoneyPosted() []panel {
	return []panel{
		{
			kind: "stacked", title: "Messages by outcome", unit: "mps", width: 12, height: 8,
			description: "Every message ends as exactly one outcome. Posted moved money; noted and superseded moved none; duplicates were known; conflicts and rejected want a person.",
			queries:     one("sum by (outcome) ("+rate(own("postonce_events_total"))+")", "{{outcome}}"),
		},
		{
			kind: "timeseries", title: "Money posted by kind and asset", unit: "short", width: 12, height: 8, log: true,
			description: "Minor units a second (cents, where the currency has them) that postings have moved. A kind that goes to nothing while others flow is an upstream that is silent.",
			queries:     one("sum by (kind, asset) ("+rate(own("postonce_posted_minor_units_total"))+")", "{{kind}} {{asset}}"),
		},
		{
			kind: "timeseries", title: "Postings by kind", unit: "wps", width: 8, height: 7,
			description: "Postings written, of units that are no currency, too.",
			queries:     one("sum by (kind) ("+rate(own("postonce_postings_total"))+")", "{{kind}}"),
		},
		{
			kind: "timeseries", title: "Workers that can post", unit: "short", width: 8, height: 7,
			description: "Workers that are connected to Kafka and Postgres. None in any process: no money is posted.",
			queries:     one("sum by (instance) ("+own("postonce_workers_ready")+")", "{{instance}}"),
			thresholds:  thresholds("red", from(1, "green")),
		},
		{
			kind: "timeseries", title: "Stopped, waits for a person", unit: "short", width: 8, height: 7,
			description: "1 while a consumer has stopped because going on by itself could lose or double money. Its partitions stand still until a person decides; docs/recovery.md has a chapter for each reason.",
			queries:     one("max by (instance, reason) ("+own("postonce_stopped")+")", "{{instance}} {{reason}}"),
			thresholds:  thresholds("green", from(1, "red")),
		},
	}
}

func howLate() []panel {
	within := rate(own("postonce_end_to_end_seconds_bucket", objectiveBucket))
	return []panel{
		{
			kind: "timeseries", title: "Lag by partition, in seconds", unit: "s", width: 12, height: 8,
			description: "Age of the oldest message without an outcome. A slope of one second a second is a partition that stands still.",
			queries:     one("max by (topic, partition) ("+part("postonce_oldest_unposted_seconds")+")", "{{topic}}/{{partition}}"),
			thresholds:  thresholds("green", from(5, "orange"), from(60, "red")),
		},
		{
			kind: "timeseries", title: "Lag by partition, in messages", unit: "short", width: 12, height: 8,
			description: "Messages between the ledger's offset and the end of the log.",
			queries:     one("max by (topic, partition) ("+part("postonce_lag_messages")+")", "{{topic}}/{{partition}}"),
		},
		{
			kind: "heatmap", title: "End to end", unit: "s", width: 12, height: 9,
			description: "How long after their Kafka timestamp messages were committed. A second band above the first is a part of the partitions; a step up for all of them is Postgres or a rebalance.",
			queries:     one("sum by (le) ("+rate(own("postonce_end_to_end_seconds_bucket"))+")", "{{le}}"),
		},
		{
			kind: "timeseries", title: "End to end, percentiles", unit: "s", width: 6, height: 9,
			description: "From a message's Kafka timestamp to its commit.",
			queries: []query{
				{expr: quantile(0.5, "postonce_end_to_end_seconds", ""), legend: "p50"},
				{expr: quantile(0.99, "postonce_end_to_end_seconds", ""), legend: "p99"},
				{expr: quantile(0.999, "postonce_end_to_end_seconds", ""), legend: "p99.9"},
			},
			thresholds: thresholds("green", from(5, "red")),
		},
		{
			kind: "timeseries", title: "Committed within 5 s", unit: "percentunit", width: 6, height: 9,
			description: "The objective: 99.9 % of messages are committed within 5 s of their Kafka timestamp. Below the line the error budget of the month burns.",
			queries:     one("sum("+within+") / sum("+rate(own("postonce_end_to_end_seconds_count"))+")", "within 5 s"),
			thresholds:  thresholds("red", from(objective, "green")),
		},
	}
}

func whatIsRefused() []panel {
	return []panel{
		{
			kind: "stacked", title: "Refused by code", unit: "mps", width: 8, height: 8,
			description: "Messages that went into quarantine. A burst of one code is one producer that has changed; `internal` is our bug.",
			queries:     one("sum by (code) ("+rate(own("postonce_rejected_total"))+")", "{{code}}"),
		},
		{
			kind: "timeseries", title: "Quarantine open by code", unit: "short", width: 8, height: 8,
			description: "Refused messages that nobody has sent again or dismissed, of the whole ledger: `postonce quarantine list`.",
			queries:     one("max by (code) ("+own("postonce_quarantine_open")+")", "{{code}}"),
			thresholds:  thresholds("green", from(1, "orange")),
		},
		{
			kind: "timeseries", title: "Incidents open by code", unit: "short", width: 8, height: 8,
			description: "Accepted, but a person should look: conflict (two contents of one event), regression (a resource went back), restatement (the same state with other money): `postonce incidents list`.",
			queries:     one("max by (code) ("+own("postonce_incidents_open")+")", "{{code}}"),
			thresholds:  thresholds("green", from(1, "orange")),
		},
	}
}

func doubledOrLost() []panel {
	return []panel{
		{
			kind: "stacked", title: "Duplicates by distance", unit: "mps", width: 8, height: 8,
			description: "Events that were known: they moved nothing. By how long ago the original came: `same_batch` and `minute` are producers that retry, `day` and `older` are somebody who sends a topic again.",
			queries:     one("sum by (distance) ("+rate(own("postonce_duplicates_total"))+")", "{{distance}}"),
		},
		{
			kind: "timeseries", title: "Fences", unit: "short", width: 8, height: 8,
			description: "Whole batches that were thrown away because another consumer had taken the partition over: this is what keeps money from being posted twice. A few with each rebalance; many are a group that cannot settle.",
			queries: []query{
				{expr: "sum(increase(" + own("postonce_fence_losses_total") + "[$__rate_interval]))", legend: "batches fenced off"},
				{expr: "sum(increase(" + own("postonce_former_owners_ended_total") + "[$__rate_interval]))", legend: "frozen owners ended"},
			},
		},
		{
			kind: "timeseries", title: "Retention margin by partition", unit: "s", width: 8, height: 8,
			description: "How long until Kafka deletes messages that were never read. At 0 they are lost to the ledger (exit code 11). Nothing here where the topic keeps its messages for ever.",
			queries:     one("min by (topic, partition) ("+part("postonce_retention_margin_seconds")+")", "{{topic}}/{{partition}}"),
			thresholds:  thresholds("red", from(86400, "orange"), from(259200, "green")),
			empty:       "kept for ever",
		},
		{
			kind: "timeseries", title: "Findings of the last verify", unit: "short", width: 12, height: 7,
			description: "What `postonce verify` has found in the tables. Anything but 0 is damage: somebody has edited the ledger, or a disk has.",
			queries:     one("max("+own("postonce_verify_last_findings")+")", "findings"),
			thresholds:  thresholds("green", from(1, "red")),
		},
		{
			kind: "timeseries", title: "Age of the last verify", unit: "s", width: 12, height: 7,
			description: "Since when the tables have not been proved.",
			queries:     one("time() - max("+own("postonce_verify_last_finished_timestamp_seconds")+")", "age"),
			thresholds:  thresholds("green", from(172800, "orange")),
		},
	}
}

func whereTimeGoes() []panel {
	return []panel{
		timeByStep(12),
		{
			kind: "timeseries", title: "Transaction time", unit: "s", width: 6, height: 8,
			description: "From the first read of a batch to its commit.",
			queries: []query{
				{expr: quantile(0.5, "postonce_transaction_seconds", ""), legend: "p50"},
				{expr: quantile(0.99, "postonce_transaction_seconds", ""), legend: "p99"},
			},
			thresholds: thresholds("green", from(2, "orange"), from(10, "red")),
		},
		rolledBack(6),
	}
}

func timeByStep(width uint32) panel {
	return panel{
		kind: "stacked", title: "Transaction time by step", unit: "s", width: width, height: 8,
		description: "Seconds of work in each second, over all workers. `balances` that grows is accounts that everybody writes; `commit` is the disk of Postgres.",
		queries:     one("sum by (step) ("+rate(own("postonce_transaction_step_seconds_sum"))+")", "{{step}}"),
	}
}

func rolledBack(width uint32) panel {
	return panel{
		kind: "stacked", title: "Batches rolled back by reason", unit: "short", width: width, height: 8,
		description: "race: two workers met, run again. fence_lost, commit_unknown: a new life begins. unavailable: Postgres cannot serve. bad_data: our bug, one event is set aside. damage: the consumer stops.",
		queries:     one("sum by (reason) (increase("+own("postonce_transaction_failures_total")+"[$__rate_interval]))", "{{reason}}"),
	}
}
