// Makes the dashboards and checks all that Grafana and Prometheus are given.
//
//	go run . write   grafana/dashboards/*.json
//	go run . check   dashboards, rules, runbooks and metrics fit together
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// The repository, from here.
const root = "../.."

var dashboardsAt = filepath.Join(root, "grafana", "dashboards")

func main() {
	registerQueries()
	command := ""
	if len(os.Args) == 2 {
		command = os.Args[1]
	}
	switch command {
	case "write":
		exit(write())
	case "check":
		exit(check())
	default:
		fmt.Fprintln(os.Stderr, "usage, in grafana/generator: go run . write|check")
		os.Exit(2)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write() error {
	for name, made := range dashboards() {
		text, err := render(made)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dashboardsAt, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func render(made dashboard.Dashboard) ([]byte, error) {
	if err := made.Validate(); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	// PromQL is full of these; nobody puts a dashboard into a page as it is.
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(made)
	return text.Bytes(), err
}
