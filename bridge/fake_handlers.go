package bridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// PickleOf is a pickle that names something of a module, which the fake can read too.
func PickleOf(module, name string) []byte {
	return []byte("c" + module + "\n" + name + "\n.")
}

// PickledElsewhere is an envelope of a Python and a Ray that no worker has.
const PickledElsewhere = "(dVformat\nI1\nsVpython\nV2.7\nsVray\nV0.1.0\nsVsys_path\n(lsVbody\nVno pickle\ns."

const fakeMismatch = "it was pickled with Python 2.7 and Ray 0.1.0, workers of this cluster run fake ones: run the script with the versions of the cluster"

// fakeCall does what the callable of that name does in schedulemesh.testing.handlers.
func fakeCall(req CallRequest) (r CallResult, hangs bool) {
	what := strings.TrimSpace(fmt.Sprintf("the %s %s", req.Kind, req.Name))
	fails := func(format string, args ...any) (CallResult, bool) {
		return CallResult{Error: what + " " + fmt.Sprintf(format, args...)}, false
	}
	code := string(req.Pickled)
	if code == PickledElsewhere {
		return fails("cannot be loaded: %s", fakeMismatch)
	}
	path, ok := strings.CutSuffix(code, "\n.")
	module, name, named := strings.Cut(strings.TrimPrefix(path, "c"), "\n")
	if !ok || !named || code[0] != 'c' {
		return fails("cannot be unpickled: UnpicklingError: the fake reads what PickleOf writes")
	}
	if module != "schedulemesh.testing.handlers" {
		return fails("cannot be unpickled: ModuleNotFoundError: No module named '%s'", module)
	}
	var given map[string]json.RawMessage
	_ = json.Unmarshal(req.Argument, &given) // Validate has seen that it is an object
	switch name {
	case "keep":
		out := map[string]any{}
		for k, v := range given {
			out[k] = v
		}
		out["kept_by"], out["type"] = "keep", "TaskState"
		return CallResult{Result: jsonOf(out)}, false
	case "keep_async":
		return CallResult{Result: jsonOf(map[string]any{"kept_by": "keep_async", "payload": given["payload"]})}, false
	case "raising":
		return fails("raised ValueError: told to raise")
	case "hanging":
		return CallResult{}, true
	case "exiting":
		return CallResult{Error: "the worker process ended while " + what + " ran"}, false
	case "listing":
		return fails("returned a list, it must return a dict")
	case "nan":
		return fails("returned what cannot be kept: state.deep.loss is nan, which JSON cannot hold")
	case "unordered":
		return fails("returned what cannot be kept: state.seen is a builtins.set, which JSON cannot hold")
	case "raw":
		return fails("returned what cannot be kept: state.weights is a builtins.bytes, which JSON cannot hold")
	case "large":
		return CallResult{Result: jsonOf(map[string]any{"weights": strings.Repeat("x", 20_000_000)})}, false
	case "restore":
		return CallResult{Result: jsonOf(map[string]any{"restored": maps.Clone(given)})}, false
	case "restore_nothing":
		return CallResult{Result: json.RawMessage("null")}, false
	case "refuse":
		return fails("did not succeed: the checkpoint is gone")
	case "NUMBER":
		return fails("is a int, which cannot be called")
	}
	return fails("cannot be unpickled: AttributeError: module '%s' has no attribute '%s'", module, name)
}
