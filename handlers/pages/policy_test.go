package pages_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/schedulemesh/schedulemesh/sched"
	"github.com/schedulemesh/schedulemesh/web"
)

// The pages and the core each have their own type for a policy; they must speak of the same one.
func TestThePolicyOfThePagesIsThePolicyOfTheCore(t *testing.T) {
	fields := func(v any) map[string]any {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		for k, x := range m {
			if x == nil || reflect.ValueOf(x).Kind() == reflect.Slice && len(x.([]any)) == 0 || reflect.ValueOf(x).Kind() == reflect.Map && len(x.(map[string]any)) == 0 {
				m[k] = "empty"
			}
		}
		return m
	}
	if core, pages := fields(sched.DefaultPolicy()), fields(web.DefaultPolicy()); !reflect.DeepEqual(core, pages) {
		t.Errorf("the core's defaults are %v, the pages' %v", core, pages)
	}
}
