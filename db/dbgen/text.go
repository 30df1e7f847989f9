package dbgen

// LockPoolsSQL is the LockPools query as text, for a pgx.Batch that begins a transaction with it.
const LockPoolsSQL = lockPools

// LiveTasksSQL and TasksByUIDSQL are queries whose rows are read as they arrive. They
// have the same columns.
const (
	LiveTasksSQL  = liveTasks
	TasksByUIDSQL = tasksByUID
)

// HistorySQL is a query that may answer a million rows, which are read as they arrive.
const HistorySQL = history

// These are asked for together when a server catches up.
const (
	SpacesOfSQL       = spacesOf
	PoolsByIDSQL      = poolsByID
	BalancesSQL       = balances
	LoansOfSQL        = loansOf
	PoolChangesSQL    = poolChanges
	UnmanagedTasksSQL = unmanagedTasks // the columns of LiveTasks
	LockUnmanagedSQL  = lockUnmanaged
	GroupsOfSQL       = groupsOf
)
