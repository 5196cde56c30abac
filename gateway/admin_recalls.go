package gateway

import (
	"fmt"
	"net/http"
	"strconv"

	"headgate/journal"
)

// recalls answers with the newest recalls of all pools, newest first.
func (g *Gateway) recalls(w http.ResponseWriter, r *http.Request) {
	limit := journal.MaxRecalls
	if q := r.URL.Query(); q.Has("limit") {
		n, err := strconv.Atoi(q.Get("limit"))
		if err != nil || n < 1 || n > journal.MaxRecalls {
			http.Error(w, fmt.Sprintf("limit is %.40q, must be a whole number from 1 to %d", q.Get("limit"), journal.MaxRecalls), http.StatusBadRequest)
			return
		}
		limit = n
	}
	writeJSON(w, g.feed.Recalls(limit))
}
