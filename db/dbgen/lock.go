package dbgen

// LockPoolsSQL is the LockPools query as text, for a pgx.Batch that begins a transaction with it.
const LockPoolsSQL = lockPools
