// Package config is the configuration file: its schema, its defaults, and
// what makes it wrong. It composes the configuration of each package that has
// one; nothing but the command imports it.
//
// It is strict. An unknown key, a key given twice, a value of another type and
// a value that contradicts another are all reported, all at once, each with
// the file, line and column where it stands and with what is allowed there.
// Nothing is taken as meant when it was not said: a typing error in a floor
// would otherwise protect nobody, silently.
//
// The file is parsed to a syntax tree and the tree is decoded here, rather
// than by the YAML library: the library stops at the first fault, forgets
// where a value of a custom type stood, and expands aliases without a bound.
// Decoding by schema needs little code, and records on the way where each path
// stands, so that rules which run later can point at lines too.
//
// The file holds no secret. Keys are stored hashed, and the keys of engines
// are named by the environment variable that holds them; so the effective
// configuration can be printed and sent to somebody.
package config
