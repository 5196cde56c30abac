-- Times are microseconds since 1970, 0 where there is none.

-- +goose Up
CREATE TABLE files (
  n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order in which lists are
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  purpose TEXT NOT NULL,
  name TEXT NOT NULL,
  bytes BIGINT NOT NULL,
  created BIGINT NOT NULL,
  expires BIGINT NOT NULL
);
CREATE INDEX files_tenant ON files (tenant, n);
CREATE INDEX files_purpose ON files (tenant, purpose, n);
CREATE INDEX files_expires ON files (expires) WHERE expires > 0;

CREATE TABLE batches (
  n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  class TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  time_window BIGINT NOT NULL, -- microseconds; so is keep_output, 0 where the batch does not say
  keep_output BIGINT NOT NULL,
  metadata TEXT NOT NULL, -- JSON, '' where there is none; so are errors
  input TEXT NOT NULL,
  output TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL,
  ended BIGINT NOT NULL DEFAULT 0, -- when
  errors TEXT NOT NULL DEFAULT '',
  -- What lists and the scheduler show, kept with every change: nothing counts items.
  total BIGINT NOT NULL DEFAULT 0,
  ready BIGINT NOT NULL DEFAULT 0, -- items in state 0
  completed BIGINT NOT NULL DEFAULT 0,
  failed BIGINT NOT NULL DEFAULT 0,
  prompt_tokens BIGINT NOT NULL DEFAULT 0,
  output_tokens BIGINT NOT NULL DEFAULT 0,
  wasted_tokens BIGINT NOT NULL DEFAULT 0,
  created_at BIGINT NOT NULL,
  started_at BIGINT NOT NULL DEFAULT 0,
  expires_at BIGINT NOT NULL,
  finalizing_at BIGINT NOT NULL DEFAULT 0,
  completed_at BIGINT NOT NULL DEFAULT 0,
  failed_at BIGINT NOT NULL DEFAULT 0,
  expired_at BIGINT NOT NULL DEFAULT 0,
  cancelling_at BIGINT NOT NULL DEFAULT 0,
  cancelled_at BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50); -- each change of an item is one of its batch's row, too
CREATE INDEX batches_tenant ON batches (tenant, n);
CREATE INDEX batches_open ON batches (n) WHERE ended = 0;
CREATE INDEX batches_input ON batches (input) WHERE ended = 0;
CREATE INDEX batches_ended ON batches (ended) WHERE ended > 0;

-- An item is here until it is done; then its line is in results.
CREATE TABLE items (
  id BIGINT PRIMARY KEY, -- batches.n << 32 | line
  batch BIGINT NOT NULL,
  custom_id TEXT NOT NULL,
  at_byte BIGINT NOT NULL,
  length BIGINT NOT NULL,
  prefix BIGINT NOT NULL, -- as a signed number: the order around is the same
  tokens BIGINT NOT NULL,
  state BIGINT NOT NULL DEFAULT 0, -- 0 ready, 1 waits for not_before, 2 claimed
  not_before BIGINT NOT NULL DEFAULT 0,
  worker BIGINT NOT NULL DEFAULT 0, -- workers.n of state 2
  fence BIGINT NOT NULL DEFAULT 0,
  attempts BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX items_ready ON items (batch, prefix, id) WHERE state = 0;
CREATE INDEX items_waits ON items (batch, not_before) WHERE state = 1;
CREATE INDEX items_claimed ON items (worker, batch) WHERE state = 2;

-- The names of a batch that is Validating. A table of its own, because an index on
-- items would be paid for by every item that is done.
CREATE TABLE names (
  batch BIGINT NOT NULL,
  custom_id TEXT NOT NULL,
  PRIMARY KEY (batch, custom_id)
);

CREATE TABLE checkpoints (
  item BIGINT PRIMARY KEY,
  kept BYTEA NOT NULL
);

CREATE TABLE results (
  id BIGINT PRIMARY KEY, -- batches.n << 32 | place
  failed BIGINT NOT NULL, -- before the line, so that others are passed over unread
  line BYTEA NOT NULL
);

CREATE TABLE workers (
  n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  until BIGINT NOT NULL
);

CREATE TABLE holds (
  name TEXT PRIMARY KEY,
  worker TEXT NOT NULL,
  until BIGINT NOT NULL
);

-- Batches whose rows in the other tables are left to be deleted.
CREATE TABLE drops (
  batch BIGINT PRIMARY KEY,
  names_only BIGINT NOT NULL -- it runs
);
