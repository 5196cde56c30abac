-- Times are microseconds since 1970, 0 where there is none.

-- +goose Up
CREATE TABLE files (
  n INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which lists are
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  purpose TEXT NOT NULL,
  name TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  created INTEGER NOT NULL,
  expires INTEGER NOT NULL
) STRICT;
CREATE INDEX files_tenant ON files (tenant, n);
CREATE INDEX files_purpose ON files (tenant, purpose, n);
CREATE INDEX files_expires ON files (expires) WHERE expires > 0;

CREATE TABLE batches (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  class TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  time_window INTEGER NOT NULL, -- microseconds; so is keep_output, 0 where the batch does not say
  keep_output INTEGER NOT NULL,
  metadata TEXT NOT NULL, -- JSON, '' where there is none; so are errors
  input TEXT NOT NULL,
  output TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL,
  ended INTEGER NOT NULL DEFAULT 0, -- when
  errors TEXT NOT NULL DEFAULT '',
  -- What lists and the scheduler show, kept with every change: nothing counts items.
  total INTEGER NOT NULL DEFAULT 0,
  ready INTEGER NOT NULL DEFAULT 0, -- items in state 0
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  prompt_tokens INTEGER NOT NULL DEFAULT 0,
  output_tokens INTEGER NOT NULL DEFAULT 0,
  wasted_tokens INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL DEFAULT 0,
  expires_at INTEGER NOT NULL,
  finalizing_at INTEGER NOT NULL DEFAULT 0,
  completed_at INTEGER NOT NULL DEFAULT 0,
  failed_at INTEGER NOT NULL DEFAULT 0,
  expired_at INTEGER NOT NULL DEFAULT 0,
  cancelling_at INTEGER NOT NULL DEFAULT 0,
  cancelled_at INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX batches_tenant ON batches (tenant, n);
CREATE INDEX batches_open ON batches (n) WHERE ended = 0;
CREATE INDEX batches_input ON batches (input) WHERE ended = 0;
CREATE INDEX batches_ended ON batches (ended) WHERE ended > 0;

-- An item is here until it is done; then its line is in results.
CREATE TABLE items (
  id INTEGER PRIMARY KEY, -- batches.n << 32 | line
  batch INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  at_byte INTEGER NOT NULL,
  length INTEGER NOT NULL,
  prefix INTEGER NOT NULL, -- as a signed number: the order around is the same
  tokens INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 0, -- 0 ready, 1 waits for not_before, 2 claimed
  not_before INTEGER NOT NULL DEFAULT 0,
  worker INTEGER NOT NULL DEFAULT 0, -- workers.n of state 2
  fence INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX items_ready ON items (batch, prefix) WHERE state = 0;
CREATE INDEX items_waits ON items (batch, not_before) WHERE state = 1;
CREATE INDEX items_claimed ON items (worker, batch) WHERE state = 2;

-- The names of a batch that is Validating. A table of its own, because an index on
-- items would be paid for by every item that is done.
CREATE TABLE names (
  batch INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  PRIMARY KEY (batch, custom_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
  item INTEGER PRIMARY KEY,
  kept BLOB NOT NULL
) STRICT;

CREATE TABLE results (
  id INTEGER PRIMARY KEY, -- batches.n << 32 | place
  failed INTEGER NOT NULL, -- before the line, so that others are passed over unread
  line BLOB NOT NULL
) STRICT;

CREATE TABLE workers (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  until INTEGER NOT NULL
) STRICT;

CREATE TABLE holds (
  name TEXT PRIMARY KEY,
  worker TEXT NOT NULL,
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Batches whose rows in the other tables are left to be deleted.
CREATE TABLE drops (
  batch INTEGER PRIMARY KEY,
  names_only INTEGER NOT NULL -- it runs
) STRICT;
