package doctor

// kinds are all that can be found, in the order of the documentation.
var kinds []*Kind

func kind(id string, level Level, what string) *Kind {
	k := &Kind{id, level, what}
	kinds = append(kinds, k)
	return k
}

// Kinds are all that can be found.
func Kinds() []*Kind { return kinds }

// What can be wrong. Levels say what it means for serve: see Level.
var (
	CheckSlow = kind("check_slow", Warning, "the check was not over in time")

	ConfigUnreadable = kind("config_unreadable", Error, "the configuration can't be read")
	ConfigProblem    = kind("config_problem", Error, "the configuration has a problem, as validate says")
	ConfigWarning    = kind("config_warning", Warning, "the configuration says what is unlikely to be meant")
	ConfigUnset      = kind("config_unset", Error, "a variable that the configuration names is not set here")
	ConfigOpen       = kind("config_open", Error, "others on this machine may write what decides who is let in")
	ConfigGroup      = kind("config_group", Warning, "a group of users may write what decides who is let in")
	NothingToCheck   = kind("nothing_to_check", Error, "no configuration is named, and no gateway answers")

	KeyExpired = kind("key_expired", Warning, "a key has expired, and nobody is let in by it")
	KeysNone   = kind("keys_none", Error, "nobody is let in: all keys have expired")
	IssuerAway = kind("issuer_away", Error, "an issuer's keys can't be fetched, so its tokens are refused")

	CertUnusable = kind("cert_unusable", Error, "a certificate can't be used")
	CertExpired  = kind("cert_expired", Error, "a certificate has expired")
	CertFuture   = kind("cert_future", Error, "a certificate is not valid yet")
	CertExpires  = kind("cert_expires", Warning, "a certificate expires soon")
	CertChain    = kind("cert_chain", Warning, "the certificates of a file do not sign each other in their order")
	CertName     = kind("cert_name", Error, "a certificate is not for the name by which its listener is called")
	SecretOpen   = kind("secret_open", Warning, "others on this machine may read what is for the gateway alone")

	EngineAway         = kind("engine_away", Error, "the engine does not answer")
	EngineTLS          = kind("engine_tls", Error, "the engine's https is not trusted")
	EngineKey          = kind("engine_key", Error, "the engine refuses the key")
	EngineNotReady     = kind("engine_not_ready", Warning, "the engine answers and takes no work")
	EngineAnswers      = kind("engine_answers", Error, "the engine does not answer as its kind does")
	EngineKind         = kind("engine_kind", Error, "the engine is of another kind")
	EngineKindPlain    = kind("engine_kind_plain", Warning, "the engine is of a kind that tells more than openai")
	EngineModels       = kind("engine_models", Error, "the engine serves no model")
	EngineSlotsUnknown = kind("engine_slots_unknown", Error, "nobody says how many sequences the engine runs")
	EngineSlotsMore    = kind("engine_slots_more", Error, "more slots are configured than the engine has")
	EngineSlotsFewer   = kind("engine_slots_fewer", Warning, "fewer slots are configured than the engine has")
	EngineKVUnknown    = kind("engine_kv_unknown", Error, "nobody says how much KV the engine holds")
	EngineKVMore       = kind("engine_kv_more", Error, "more KV is configured than the engine holds")
	EngineKVFewer      = kind("engine_kv_fewer", Warning, "less KV is configured than the engine holds")
	EngineContext      = kind("engine_context", Error, "a longer context is configured than the engine takes")
	EngineBlock        = kind("engine_block", Warning, "another block size is configured than the engine has")
	EnginePrefix       = kind("engine_prefix", Warning, "prefix caching is configured, and the engine has it off")
	EnginePriority     = kind("engine_priority", Warning, "priority is configured, and the engine does not order by it")
	EngineMetrics      = kind("engine_metrics", Warning, "the engine's load is not to be read, or not all of it")
	EngineSlow         = kind("engine_slow", Warning, "reading the engine's load takes longer than it should be old")
	EngineProfile      = kind("engine_profile", Warning, "the engine's profile does not fit it")
	EngineClock        = kind("engine_clock", Warning, "the engine's clock is another than this machine's")
	ModelUnknown       = kind("model_unknown", Warning, "a model of the pool is none of its engines'")
	AliasUnknown       = kind("alias_unknown", Error, "an alias leads to a model that no engine has")
	PoolFits           = kind("pool_fits", Error, "what the classes are promised does not fit what the engines hold")

	FleetName     = kind("fleet_name", Error, "the replica has no name")
	StoreAway     = kind("store_away", Error, "the fleet's store does not answer")
	StoreRefused  = kind("store_refused", Error, "the fleet's store does not let this replica in")
	StoreMember   = kind("store_member", Warning, "a member of the fleet's store is not well")
	StoreLeader   = kind("store_leader", Error, "the fleet's store has no leader, so nothing can be written")
	StoreAlarm    = kind("store_alarm", Error, "the fleet's store takes no writes")
	StoreFull     = kind("store_full", Warning, "the fleet's store is nearly full")
	StoreClock    = kind("store_clock", Warning, "the store's clock is another than this machine's")
	ReplicaAway   = kind("replica_away", Warning, "a replica of the fleet is not reached at its address")
	ReplicaClock  = kind("replica_clock", Warning, "a replica's clock is another than this machine's")
	BatchStore    = kind("batch_store", Error, "the database of batches can't be used")
	BatchReadOnly = kind("batch_read_only", Error, "the database of batches takes no writes")
	BatchNewer    = kind("batch_newer", Error, "the database of batches is of a newer version of this program")
	BatchFiles    = kind("batch_files", Error, "the files of batches can't be kept")
	AuditStore    = kind("audit_store", Warning, "audit records can't be written")

	FileUnwritable = kind("file_unwritable", Error, "a file can't be written")
	DiskFull       = kind("disk_full", Error, "a disk is full")
	DiskLow        = kind("disk_low", Warning, "a disk has little room")

	LimitFiles  = kind("limit_files", Warning, "the limit of open files is reached before limits.max_connections")
	LimitMemory = kind("limit_memory", Warning, "limits.max_connections takes more memory than there is")

	CollectorAway    = kind("collector_away", Warning, "the collector of otlp.endpoint does not answer")
	CollectorRefuses = kind("collector_refuses", Warning, "the collector of otlp.endpoint does not take what is exported")

	ListenTaken   = kind("listen_taken", Error, "the address is in use by another program")
	ListenDenied  = kind("listen_denied", Error, "the address can't be listened at")
	AdminOpen     = kind("admin_open", Warning, "the admin listener lets in whoever reaches it")
	AdminPlain    = kind("admin_plain", Warning, "keys of operators cross the network in the clear")
	AnonymousOpen = kind("anonymous_open", Warning, "whoever reaches the listener may use the engines")

	AdminAway     = kind("admin_away", Error, "the admin listener does not answer")
	AdminTLS      = kind("admin_tls", Error, "the admin listener's https is not trusted")
	AdminKey      = kind("admin_key", Error, "the admin listener refuses the key")
	AdminNotReady = kind("admin_not_ready", Error, "the gateway that runs is not ready")
	AdminTrouble  = kind("admin_trouble", Warning, "the gateway that runs says that something is amiss")
	AdminOther    = kind("admin_other", Warning, "the gateway that runs has other engines than the configuration")
	AdminVersion  = kind("admin_version", Warning, "the gateway that runs is of another version than this program")
	AdminClock    = kind("admin_clock", Warning, "the clock of the gateway that runs is another than this machine's")
	AdminFiles    = kind("admin_files", Warning, "the gateway that runs has few files left that it may open")
	ObservedOld   = kind("observed_old", Warning, "the gateway that runs has not heard of an engine for long")
)
