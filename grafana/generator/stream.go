package main

import "github.com/grafana/grafana-foundation-sdk/go/dashboard"

// stream is what an engineer looks at once Overview has shown that something is wrong.
func stream() dashboard.Dashboard {
	made := base(streamUID, "Postonce / Stream detail",
		"What each consumer does to each partition: batches, transactions by step, retries by reason, fences, librdkafka, Postgres.")
	made.Templating, made.Annotations = chosenConsumers(), events()
	made.Panels = place([]section{
		{"Batches", batches()},
		{"Transactions", transactions()},
		{"Retries, fences and lives", livesAndFences()},
		{"Partitions", partitions()},
		{"librdkafka", librdkafka()},
		{"Postgres", postgres()},
		{"Processes", processes()},
	}, nil)
	return made
}

func batches() []panel {
	return []panel{
		{
			kind: "timeseries", title: "Batches committed", unit: "ops", width: 8, height: 7,
			description: "Transactions a second. A batch is what was waiting: many small ones are a quiet system, few large ones a busy one.",
			queries:     one("sum by (instance) ("+rate(own("postonce_batch_messages_count"))+")", "{{instance}}"),
		},
		{
			kind: "timeseries", title: "Messages in a batch", unit: "short", width: 8, height: 7, log: true,
			description: "At most 20,000 messages or 8 MB. p50 at the limit: the consumer cannot keep up.",
			queries: []query{
				{expr: quantile(0.5, "postonce_batch_messages", ""), legend: "p50"},
				{expr: quantile(0.99, "postonce_batch_messages", ""), legend: "p99"},
				{expr: "sum(" + rate(own("postonce_batch_messages_sum")) + ") / sum(" + rate(own("postonce_batch_messages_count")) + ")", legend: "mean"},
			},
		},
		{
			kind: "timeseries", title: "Offsets passed by partition", unit: "cps", width: 8, height: 7, signed: true,
			description: "How fast the ledger's offset moves. Below zero: the database has gone back (a restore, a failover), and reads again from there.",
			queries:     one("sum by (topic, partition) (deriv("+part("postonce_next_offset")+"[$__rate_interval]))", "{{topic}}/{{partition}}"),
		},
	}
}

func transactions() []panel {
	return []panel{
		timeByStep(12),
		{
			kind: "timeseries", title: "Slowest step, p99", unit: "s", width: 6, height: 8,
			description: "Which step makes a slow transaction slow.",
			queries:     one(quantile(0.99, "postonce_transaction_step_seconds", "step"), "{{step}}"),
		},
		{
			kind: "timeseries", title: "Transaction time by consumer, p99", unit: "s", width: 6, height: 8,
			description: "From the first read of a batch to its commit. One consumer alone is its machine or its network; all of them are Postgres. The statement's time-out is 20 s.",
			queries:     one(quantile(0.99, "postonce_transaction_seconds", "instance"), "{{instance}}"),
			thresholds:  thresholds("green", from(2, "orange"), from(10, "red")),
		},
	}
}

func livesAndFences() []panel {
	count := func(metric, by string) string {
		return "sum by (" + by + ") (increase(" + own(metric) + "[$__rate_interval]))"
	}
	return []panel{
		rolledBack(8),
		{
			kind: "timeseries", title: "Retries after a lost race", unit: "short", width: 8, height: 8,
			description: "Two workers met one new resource or account; the batch was run again. Frequent ones: one resource's events stand on several partitions.",
			queries:     one(count("postonce_retries_total", "instance"), "{{instance}}"),
		},
		{
			kind: "timeseries", title: "Fences and former owners", unit: "short", width: 8, height: 8,
			description: "Batches that died on the fence, and transactions of frozen former owners that were ended because they blocked a batch.",
			queries: []query{
				{expr: count("postonce_fence_losses_total", "instance"), legend: "fenced off {{instance}}"},
				{expr: count("postonce_former_owners_ended_total", "instance"), legend: "owners ended by {{instance}}"},
			},
		},
		{
			kind: "timeseries", title: "Lives of workers", unit: "short", width: 8, height: 7,
			description: "A life ends by a lost fence, an unknown COMMIT, an error of Kafka, or Postgres away for 10 s; the next begins with a claim.",
			queries:     one(count("postonce_worker_lives_total", "instance"), "{{instance}}"),
		},
		{
			kind: "timeseries", title: "Rebalances", unit: "short", width: 4, height: 7,
			description: "Times that the group has assigned or revoked partitions.",
			queries:     one(count("postonce_rebalances_total", "instance"), "{{instance}}"),
		},
		{
			kind: "timeseries", title: "Rebalance time, p99", unit: "s", width: 6, height: 7,
			description: "From the group's word to the last claim of what it has assigned: so long nobody read these partitions.",
			queries:     one(quantile(0.99, "postonce_rebalance_seconds", ""), "p99"),
			thresholds:  thresholds("green", from(5, "orange"), from(30, "red")),
		},
		{
			kind: "timeseries", title: "Stuck partitions ended", unit: "short", width: 6, height: 7,
			description: "Lives that the watch over partitions has ended: nothing had come for 60 s although something was there.",
			queries:     one(count("postonce_stuck_partitions_total", "instance"), "{{instance}}"),
			thresholds:  thresholds("green", from(1, "orange")),
		},
	}
}

func partitions() []panel {
	each := func(metric string) []query {
		return one("max by (topic, partition) ("+part(metric)+")", "{{topic}}/{{partition}}")
	}
	return []panel{
		{
			kind: "timeseries", title: "Oldest message without an outcome", unit: "s", width: 8, height: 7,
			description: "By its Kafka timestamp; 0 where there is none.",
			queries:     each("postonce_oldest_unposted_seconds"),
			thresholds:  thresholds("green", from(5, "orange"), from(60, "red")),
		},
		{
			kind: "timeseries", title: "Lag", unit: "short", width: 8, height: 7,
			description: "Messages between the ledger's offset and the end of the log.",
			queries:     each("postonce_lag_messages"),
		},
		{
			kind: "timeseries", title: "Nothing comes, though something is there", unit: "s", width: 8, height: 7,
			description: "How long a partition has stood still. At 60 s the watch ends the worker's life and begins anew.",
			queries:     each("postonce_partition_still_seconds"),
			thresholds:  thresholds("green", from(30, "orange"), from(60, "red")),
		},
		{
			kind: "timeseries", title: "Last stable offset held back", unit: "s", width: 8, height: 7,
			description: "An open transaction of a producer holds back everything behind it. Past 15 minutes its producer is gone: `kafka-transactions.sh find-hanging`.",
			queries:     each("postonce_last_stable_offset_held_seconds"),
			thresholds:  thresholds("green", from(60, "orange"), from(900, "red")),
		},
		{
			kind: "timeseries", title: "Offsets behind an open transaction", unit: "short", width: 8, height: 7,
			description: "Between the last stable offset and the end of the log: nobody may read them yet.",
			queries:     each("postonce_unstable_offsets"),
		},
		{
			kind: "timeseries", title: "Retention margin", unit: "s", width: 8, height: 7,
			description: "How long until Kafka deletes messages that were never read.",
			queries:     one("min by (topic, partition) ("+part("postonce_retention_margin_seconds")+")", "{{topic}}/{{partition}}"),
			thresholds:  thresholds("red", from(86400, "orange"), from(259200, "green")),
			empty:       "kept for ever",
		},
		{
			kind: "timeseries", title: "Messages kept for a restore", unit: "short", width: 12, height: 7,
			description: "Between the log's start and the ledger's offset: so far an older backup may go back and still heal from the topic.",
			queries:     one("max by (topic, partition) ("+part("postonce_next_offset")+" - "+part("postonce_log_start_offset")+")", "{{topic}}/{{partition}}"),
		},
		{
			kind: "timeseries", title: "Retention and the recovery window", unit: "s", width: 12, height: 7,
			description: "The topic must keep its messages for at least the recovery window, or a backup that is put back cannot heal. No line of the topic: it keeps them for ever.",
			queries: []query{
				{expr: "min by (topic) (" + own("postonce_topic_retention_seconds", `topic=~"$topic"`) + ")", legend: "retention of {{topic}}"},
				{expr: "max(" + own("postonce_recovery_window_seconds") + ")", legend: "recovery window"},
			},
		},
	}
}

func librdkafka() []panel {
	return []panel{
		{
			kind: "timeseries", title: "Round trip to brokers", unit: "s", width: 6, height: 7,
			description: "As librdkafka measures it, the worst worker. A fetch that waits for messages counts, too: up to 500 ms on a quiet topic is idleness.",
			queries:     one("max by (broker, quantile) ("+own("postonce_kafka_broker_round_trip_seconds")+")", "{{broker}} p{{quantile}}"),
		},
		{
			kind: "timeseries", title: "Disconnects from brokers", unit: "short", width: 6, height: 7,
			description: "A broker that restarts shows once for each worker; one that goes on is a network or a broker in trouble.",
			queries:     one("sum by (broker) (increase("+own("postonce_kafka_broker_disconnects_total")+"[$__rate_interval]))", "{{broker}}"),
		},
		{
			kind: "timeseries", title: "Prefetched messages", unit: "short", width: 6, height: 7,
			description: "Fetched and not yet taken. Full queues with lag: Postgres is the slow part. Empty ones with lag: Kafka is.",
			queries:     one("sum by (topic, partition) ("+part("postonce_kafka_fetch_queue_messages")+")", "{{topic}}/{{partition}}"),
		},
		{
			kind: "timeseries", title: "Prefetched bytes", unit: "bytes", width: 6, height: 7,
			description: "At most 8 MB for each worker.",
			queries:     one("sum by (topic, partition) ("+part("postonce_kafka_fetch_queue_bytes")+")", "{{topic}}/{{partition}}"),
		},
	}
}

func postgres() []panel {
	written := "max(" + rate(own("postonce_postgres_wal_bytes_total")) + ")"
	return []panel{
		{
			kind: "timeseries", title: "Connections to Postgres", unit: "short", width: 6, height: 7,
			description: "Open ones of each process: two for each worker and one for the process.",
			queries:     one("sum by (instance) ("+own("postonce_postgres_connections")+")", "{{instance}}"),
		},
		{
			kind: "timeseries", title: "WAL written", unit: "Bps", width: 6, height: 7,
			description: "By the whole server, as each process asks it. A jump after a checkpoint is full-page images: a longer checkpoint_timeout makes them fewer.",
			queries:     one(written, "WAL"),
		},
		{
			kind: "timeseries", title: "WAL for each message", unit: "bytes", width: 6, height: 7,
			description: "What a message costs the disk and the standbys. About 700 bytes for a payment of two postings.",
			queries:     one(written+" / sum("+rate(own("postonce_events_total"))+")", "bytes"),
		},
		{
			kind: "timeseries", title: "Postgres time for each message", unit: "s", width: 6, height: 7,
			description: "Transaction time over messages: 0.0001 is a worker that can post 10,000 a second.",
			queries:     one("sum("+rate(own("postonce_transaction_seconds_sum"))+") / sum("+rate(own("postonce_events_total"))+")", "seconds"),
		},
	}
}

func processes() []panel {
	each := func(expr string) []query { return one("max by (instance) ("+expr+")", "{{instance}}") }
	return []panel{
		{
			kind: "timeseries", title: "CPU", unit: "percentunit", width: 6, height: 7,
			description: "1 is one core. A worker is one thread: it can use no more than that.",
			queries:     each(rate(own("process_cpu_seconds_total"))),
		},
		{
			kind: "timeseries", title: "Resident memory", unit: "bytes", width: 6, height: 7,
			description: "A batch of 8 MB and what librdkafka has prefetched, for each worker.",
			queries:     each(own("process_resident_memory_bytes")),
		},
		{
			kind: "timeseries", title: "Open files of those allowed", unit: "percentunit", width: 4, height: 7,
			description: "Connections, mostly.",
			queries:     each(own("process_open_fds") + " / " + own("process_max_fds")),
			thresholds:  thresholds("green", from(0.8, "red")),
		},
		{
			kind: "timeseries", title: "Threads", unit: "short", width: 4, height: 7,
			description: "One for each worker, and those of librdkafka for each broker.",
			queries:     each(own("process_threads")),
		},
		{
			kind: "timeseries", title: "Time since the start", unit: "s", width: 4, height: 7,
			description: "A saw is a process that is started again and again: read its last line.",
			queries:     each("time() - " + own("process_start_time_seconds")),
		},
	}
}
