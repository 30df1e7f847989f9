package clusters

import "errors"

// ErrOpen says that a cluster is not asked at the moment, because it failed several times in a row.
var ErrOpen = errors.New("the cluster failed several times in a row and is left alone for a moment")
