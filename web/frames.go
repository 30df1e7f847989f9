package web

// SignIn is the sign-in page.
type SignIn struct {
	Action  string // where the form posts to
	Next    string // where to go afterwards
	Problem string // why the last try did not work, "" for the first
	Hint    string // where the token is found, such as the token file's path
}

// Problem is an error page.
type Problem struct {
	Status    int
	Title     string
	Text      Line
	Advice    []Line // what to do about it
	Reference string // to find it in the log, "" when it is not logged
}

// Confirm asks before something that cannot be undone.
type Confirm struct {
	Title     string
	Text      Line
	Action    string // where the form posts to
	Button    string
	Danger    bool
	Hidden    []Label  // fields to post with it
	Items     []string // what it is about, when it is many
	Cancel    string   // where "No" leads
	Force     string   // a check box of that name, "" for none
	ForceText string
}

// Retune asks for a task's new priority.
type Retune struct {
	Task     string
	State    State
	Priority string
	Errors   Errors
}
