package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

const (
	overviewUID = "postonce-overview"
	streamUID   = "postonce-stream"
	ledgerUID   = "postonce-ledger"
)

// The objective: so many of all messages are committed within so many seconds of their Kafka
// timestamp. grafana/rules/postonce.yml counts its burn rates by the same figures.
const (
	objective = 0.999
	// Prometheus 3 writes the bucket's border as 5.0, Prometheus 2 as the consumer does.
	objectiveBucket = `le=~"5|5.0"`
)

// dashboards gives each file its dashboard.
func dashboards() map[string]dashboard.Dashboard {
	return map[string]dashboard.Dashboard{
		"overview.json": overview(),
		"stream.json":   stream(),
		"ledger.json":   ledger(),
	}
}

func base(uid, title, description string) dashboard.Dashboard {
	return dashboard.Dashboard{
		Uid: to(uid), Title: to(title), Description: to(description), Tags: []string{"postonce"},
		SchemaVersion: 42, Editable: to(false), Timezone: to("utc"), Refresh: to("10s"),
		GraphTooltip: to(dashboard.DashboardCursorSyncCrosshair),
		Time:         &dashboard.DashboardDashboardTime{From: "now-1h", To: "now"},
		Links:        []dashboard.DashboardLink{others()},
	}
}

// others leads from each dashboard to the rest, with the time and the variables kept.
func others() dashboard.DashboardLink {
	return dashboard.DashboardLink{
		Title: "Postonce", Type: dashboard.DashboardLinkTypeDashboards, Icon: "dashboard", Tags: []string{"postonce"},
		KeepTime: true, IncludeVars: true,
	}
}

// inDetail leads from a panel to the stream's own dashboard.
func inDetail() dashboard.DashboardLink {
	return dashboard.DashboardLink{
		Title: "Stream detail", Type: dashboard.DashboardLinkTypeLink, Icon: "external link", Tags: []string{},
		Tooltip: "The same time, topic, partition and instance in detail", KeepTime: true, IncludeVars: true,
		Url: to("/d/" + streamUID + "?${__url_time_range}&${__all_variables}"),
	}
}

// own selects the series of the chosen consumers; `more` are further matchers.
func own(metric string, more ...string) string {
	matchers := append([]string{`job=~"$job"`, `instance=~"$instance"`}, more...)
	return metric + "{" + strings.Join(matchers, ", ") + "}"
}

// part selects those of the chosen partitions, too.
func part(metric string, more ...string) string {
	return own(metric, append([]string{`topic=~"$topic"`, `partition=~"$partition"`}, more...)...)
}

func rate(selector string) string { return "rate(" + selector + "[$__rate_interval])" }

func quantile(q float64, histogram, by string) string {
	labels := "le"
	if by != "" {
		labels += ", " + by
	}
	return fmt.Sprintf("histogram_quantile(%g, sum by (%s) (%s))", q, labels, rate(own(histogram+"_bucket")))
}

func one(expr, legend string) []query { return []query{{expr: expr, legend: legend}} }

// chosenConsumers are the variables that Overview and Stream detail share: a link keeps them.
func chosenConsumers() dashboard.DashboardDashboardTemplating {
	return dashboard.DashboardDashboardTemplating{List: []dashboard.VariableModel{
		datasourceVariable("prometheus"),
		queryVariable("job", "Job", "Which of the jobs that Prometheus scrapes.", "label_values(postonce_build_info, job)"),
		queryVariable("instance", "Instance", "Which consumer processes.", `label_values(postonce_build_info{job=~"$job"}, instance)`),
		queryVariable("topic", "Topic", "For what is known by partition; outcomes and times are of all topics of a process.",
			`label_values(postonce_lag_messages{job=~"$job"}, topic)`),
		queryVariable("partition", "Partition", "As for the topic.",
			`label_values(postonce_lag_messages{job=~"$job", topic=~"$topic"}, partition)`),
	}}
}

func datasourceVariable(kind string) dashboard.VariableModel {
	return dashboard.VariableModel{
		Type: dashboard.VariableTypeDatasource, Name: "datasource", Label: to("Data source"),
		Query: &dashboard.StringOrMap{String: to(kind)}, Refresh: to(dashboard.VariableRefreshOnDashboardLoad),
		Description: to("Where the figures come from."),
	}
}

func queryVariable(name, label, description, asked string) dashboard.VariableModel {
	all := dashboard.StringOrArrayOfString{String: to("All")}
	return dashboard.VariableModel{
		Type: dashboard.VariableTypeQuery, Name: name, Label: to(label), Description: to(description),
		Query: &dashboard.StringOrMap{String: to(asked)}, Datasource: source("prometheus"), Definition: to(asked),
		Multi: to(true), IncludeAll: to(true), AllValue: to(".+"), Sort: to(dashboard.VariableSortNaturalAsc),
		Refresh: to(dashboard.VariableRefreshOnTimeRangeChanged),
		Current: &dashboard.VariableOption{Text: all, Value: dashboard.StringOrArrayOfString{String: to("$__all")}},
	}
}

// events are what has happened to the consumers. Grafana titles such a mark by the label
// alertname, so each expression makes one.
func events() dashboard.AnnotationContainer {
	mark := func(name, color, expr string) dashboard.AnnotationQuery {
		return dashboard.AnnotationQuery{
			Name: name, Enable: true, IconColor: color, Datasource: source("prometheus"),
			Target: prometheus.Dataquery{Expr: expr, RefId: to("Anno"), Interval: to("30s"), Range: to(true),
				Datasource: source("prometheus")},
		}
	}
	titled := func(expr, title, label string) string {
		return fmt.Sprintf(`label_replace(%s, "alertname", "%s", "%s", "(.+)")`, expr, title, label)
	}
	return dashboard.AnnotationContainer{List: []dashboard.AnnotationQuery{
		mark("Rebalances", "blue", titled(
			"sum by (instance) (increase("+own("postonce_rebalances_total")+"[1m])) > 0", "Rebalance of $1", "instance")),
		mark("Restarts", "orange", titled(
			"max by (instance) (changes("+own("process_start_time_seconds")+"[1m])) > 0", "Restart of $1", "instance")),
		mark("Deploys", "purple", titled(
			`count by (version) (postonce_build_info{job=~"$job"}) unless count by (version) (postonce_build_info{job=~"$job"} offset 1m)`,
			"Version $1", "version")),
	}}
}

func sortedKeys[V any](of map[string]V) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
