// Package top shows in a terminal what the admin listener says of pools at this moment.
//
// What is shown is made by [Text] and by no other: a function of what was told, of the size
// of the terminal and of what somebody has chosen. [Model] has the keys and asks again and
// again; a picture is drawn whole, and it is the terminal's library that writes only what is
// other than before, so that nothing flickers.
//
// What stands in names and reasons comes from engines in part. It is shown without what a
// terminal would take for a command.
//
// Alternatives: the streamed events of the console would save questions, of which there is
// one a second here, and would need a second way to come back after a break.
package top
