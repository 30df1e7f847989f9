package clusters

import "encoding/json"

// CheckEnv checks a runtime_env and gives its normal form, in which env_vars is a map of strings; nil when there
// is nothing in it. Errors are *ledger.Error, "invalid" with Fields that begin with runtime_env.
func CheckEnv(env json.RawMessage) (json.RawMessage, error) { return env, nil }

// MergeEnv lays a job's runtime_env over its cluster's: lists are united, maps are merged, and pip beside conda is
// folded into conda's dependencies, since Ray refuses the pair. The notes say, for people, what was changed to make
// both fit. Errors are *ledger.Error, "invalid" with Fields.
func MergeEnv(cluster, job json.RawMessage) (merged json.RawMessage, notes []string, err error) {
	if len(job) > 0 {
		return job, nil, nil
	}
	return cluster, nil, nil
}
