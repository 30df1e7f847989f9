// Package ledger is quota as data: lanes, transactions, the life of a task,
// loans, reconcile and verify.
//
// Every change runs in a transaction that holds SELECT … FOR UPDATE on the pools
// it touches; the decision core in memory is only a cache of what those rows
// say. Concurrent calls are combined by a lane into one transaction with an
// answer for each. Ledger knows Postgres and sched; it must not know HTTP, Ray
// or the bridge.
package ledger
