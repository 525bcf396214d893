// Package syntax stands in for Loki's: no panel here asks Loki.
package syntax

import (
	"errors"
	"time"
)

type (
	// Expr is any LogQL expression.
	Expr interface{}
	// BinOpExpr and the others are what the linter walks over.
	BinOpExpr struct {
		SampleExpr Expr
		RHS        Expr
	}
	RangeAggregationExpr  struct{ Left Expr }
	VectorAggregationExpr struct{ Left Expr }
	LabelReplaceExpr      struct{ Left Expr }
	LogRangeExpr          struct {
		Left     Expr
		Interval time.Duration
	}
	PipelineExpr struct {
		Left        Expr
		MultiStages []Expr
	}
)

// ParseExpr refuses: a query to Loki must not pass unseen.
func ParseExpr(string) (Expr, error) {
	return nil, errors.New("no data source of ours is Loki")
}
