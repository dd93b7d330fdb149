#pragma once
// The tables of a JobStore, and how a file of an earlier version becomes one of this version.
#include <memory>
#include <span>
#include <string>

#include "engine/service/sqlite.h"
#include "engine/service/store_host.h"

namespace weft {

// The host with its empty members filled in.
StoreHost complete_host(StoreHost host);

// Scripts of SQL. The n-th makes version n of the one before; `PRAGMA user_version` is the last.
std::span<const char* const> schema_steps();

// Opens the connection that makes or migrates the tables: a file of an earlier version is first
// copied to PATH.vN.bak. Error(kUsage) where the path lies on a network file system, or the file
// was made by a newer version or another program, or is damaged; kOutput where it cannot be opened.
std::unique_ptr<Database> open_store(const std::string& path, const StoreHost& host);

}  // namespace weft
