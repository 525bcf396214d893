package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
)

const postgresType = "grafana-postgresql-datasource"

// sqlQuery is a query to Postgres. The Foundation SDK has no type for it, and would take any
// bag of options for one: here is what Grafana's own plug-in reads, and nothing else.
type sqlQuery struct {
	RefID      string                `json:"refId"`
	Datasource *common.DataSourceRef `json:"datasource"`
	EditorMode string                `json:"editorMode"`
	Format     string                `json:"format"`
	RawQuery   bool                  `json:"rawQuery"`
	RawSQL     string                `json:"rawSql"`
}

func (sqlQuery) ImplementsDataqueryVariant()            {}
func (sqlQuery) DataqueryType() string                  { return postgresType }
func (q sqlQuery) Equals(other variants.Dataquery) bool { return reflect.DeepEqual(q, other) }

func (q sqlQuery) Validate() error {
	switch {
	case q.RawSQL == "":
		return errors.New("a query without SQL")
	case q.Format != "table" && q.Format != "time_series":
		return errors.New("a format that the plug-in does not have: " + q.Format)
	case q.EditorMode != "code" || !q.RawQuery:
		return errors.New("a query that the editor's builder would overwrite")
	}
	return nil
}

func registerQueries() {
	plugins.RegisterDefaultPlugins()
	decode := func(raw []byte) (variants.Dataquery, error) {
		var query sqlQuery
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&query); err != nil {
			return nil, err
		}
		return query, query.Validate()
	}
	cog.NewRuntime().RegisterDataqueryVariant(variants.DataqueryConfig{
		Identifier:                 postgresType,
		DataqueryUnmarshaler:       decode,
		StrictDataqueryUnmarshaler: decode,
	})
}
