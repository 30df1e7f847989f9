package web

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestWhatLooksLikeASecretIsNotShown(t *testing.T) {
	env := json.RawMessage(`{"env_vars": {"HF_TOKEN": "t0p", "AWS_SECRET_ACCESS_KEY": "t1p", "db_password": "t2p", "MY_PAT": "t3p", "PYTHONPATH": "/opt", "TOKENIZERS_PARALLELISM": "t4p"},
		"pip": ["numpy", "--extra-index-url https://mei:t5p@pypi.example.net/simple"], "n": 12345678901234567890}`)
	text, hidden := MaskEnv(env)
	for _, secret := range []string{"t0p", "t1p", "t2p", "t3p", "t5p"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is shown: %s", secret, text)
		}
	}
	for _, plain := range []string{"/opt", "numpy", "https://mei:", "@pypi.example.net/simple", "12345678901234567890", "HF_TOKEN"} {
		if !strings.Contains(text, plain) {
			t.Errorf("%s is missing: %s", plain, text)
		}
	}
	if hidden < 5 {
		t.Errorf("%d hidden, want 5 at least", hidden)
	}
	if got := string(env); !strings.Contains(got, "t0p") {
		t.Error("the environment itself was changed")
	}
	for _, none := range []string{"", "null", "{}", "[1]", "broken"} {
		if text, n := MaskEnv(json.RawMessage(none)); text != "" || n != 0 {
			t.Errorf("%q is shown as %q", none, text)
		}
	}
}

func TestAFormThatWasSavedKeepsWhatItDidNotShow(t *testing.T) {
	was := json.RawMessage(`{"env_vars": {"HF_TOKEN": "t0p", "OTHER_KEY": "t1p", "A": "1"}, "pip": ["numpy", "https://mei:t5p@host/x"]}`)
	shown, _ := MaskEnv(was)
	edited := strings.Replace(strings.Replace(shown, `"A": "1"`, `"A": "2"`, 1), `"OTHER_KEY": "`+Masked+`"`, `"OTHER_KEY": "new"`, 1)
	edited = strings.Replace(edited, `"numpy",`, `"torch", "numpy",`, 1)
	var got struct {
		Vars map[string]string `json:"env_vars"`
		Pip  []string
	}
	if err := json.Unmarshal(Unmask(json.RawMessage(edited), was), &got); err != nil {
		t.Fatal(err)
	}
	if got.Vars["HF_TOKEN"] != "t0p" || got.Vars["OTHER_KEY"] != "new" || got.Vars["A"] != "2" || strings.Join(got.Pip, " ") != "torch numpy https://mei:t5p@host/x" {
		t.Errorf("%+v", got)
	}
	if plain := json.RawMessage(`{"a":  1}`); string(Unmask(plain, was)) != string(plain) {
		t.Error("what has nothing masked was changed")
	}
}
