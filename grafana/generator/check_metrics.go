package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

// Metrics that Prometheus makes by itself.
var ofPrometheus = map[string]bool{"up": true}

// expressions gives each PromQL expression with where it stands, Grafana's variables filled in.
func expressions() (map[string]string, []error) {
	found, _ := committed()
	var errors []error
	all := map[string]string{}
	for name, one := range found {
		for _, expr := range promQLOf(one) {
			all[strings.ReplaceAll(expr, "$__rate_interval", "5m")] = name
		}
	}
	rules, err := readRules()
	if err != nil {
		errors = append(errors, err)
	}
	for _, rule := range rules {
		all[rule.Expr] = rule.Alert + rule.Record
	}
	return all, errors
}

func expressionsParse() []error {
	all, errors := expressions()
	for expr, place := range all {
		if _, err := newParser().ParseExpr(expr); err != nil {
			errors = append(errors, fmt.Errorf("%s: %s: %w", place, expr, err))
		}
	}
	return errors
}

// metricsFit compares with docs/metrics.md, which is made from the code.
func metricsFit() []error {
	exported, err := exportedMetrics()
	if err != nil {
		return []error{err}
	}
	unused, err := unusedMetrics()
	if err != nil {
		return []error{err}
	}
	all, errors := expressions()
	rules, _ := readRules()
	recorded := map[string]bool{}
	for _, rule := range rules {
		recorded[rule.Record] = true
	}
	used := map[string]bool{}
	for expr, place := range all {
		for _, asked := range metricsIn(expr) {
			name := asked
			if !exported[name] {
				// Of a histogram three series are asked for, by other names.
				name = regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			}
			if !exported[name] && !recorded[asked] && !ofPrometheus[asked] {
				errors = append(errors, fmt.Errorf("%s asks for %s, which nobody exports", place, asked))
			}
			used[name] = true
		}
	}
	for _, name := range sortedKeys(exported) {
		reason, listed := unused[name]
		switch {
		case !used[name] && !listed:
			errors = append(errors, fmt.Errorf("%s is exported and nobody looks at it: a panel, an alarm, or a reason in grafana/unused.yml", name))
		case used[name] && listed:
			errors = append(errors, fmt.Errorf("%s is in grafana/unused.yml and is used", name))
		case listed && len(reason) < 10:
			errors = append(errors, fmt.Errorf("grafana/unused.yml has no reason for %s", name))
		}
	}
	for name := range unused {
		if !exported[name] {
			errors = append(errors, fmt.Errorf("grafana/unused.yml names %s, which nobody exports", name))
		}
	}
	return errors
}

func metricsIn(expr string) []string {
	parsed, err := newParser().ParseExpr(expr)
	if err != nil {
		return nil // Told by another check.
	}
	var names []string
	for _, selector := range parser.ExtractSelectors(parsed) {
		for _, matcher := range selector {
			if matcher.Name == labels.MetricName {
				names = append(names, matcher.Value)
			}
		}
	}
	return names
}

func exportedMetrics() (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		return nil, err
	}
	exported := map[string]bool{}
	for _, found := range regexp.MustCompile("`((?:postonce|process)_[a-z0-9_]+)`").FindAllSubmatch(text, -1) {
		exported[string(found[1])] = true
	}
	if len(exported) < 20 {
		return nil, fmt.Errorf("docs/metrics.md names %d metrics only: is its form another one?", len(exported))
	}
	return exported, nil
}

func unusedMetrics() (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join(root, "grafana", "unused.yml"))
	if err != nil {
		return nil, err
	}
	unused := map[string]string{}
	return unused, yaml.Unmarshal(text, &unused)
}
