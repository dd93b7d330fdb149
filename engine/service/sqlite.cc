#include "engine/service/sqlite.h"

#include <sqlite3.h>

#include <cstring>

namespace weft {
namespace {

std::string reason(sqlite3* connection, int code) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return "the disk is full";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another program has locked it";
    case SQLITE_READONLY:
      return "it is read-only";
    case SQLITE_CORRUPT:
      return "it is damaged";
    case SQLITE_NOTADB:
      return "it is no database, or damaged";
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR: {
      const int system = connection ? sqlite3_system_errno(connection) : 0;
      const std::string what =
          (code & 0xff) == SQLITE_IOERR ? "the disk failed" : "it cannot be opened";
      return system == 0 ? what : what + " (" + std::strerror(system) + ")";
    }
    default:
      return connection ? sqlite3_errmsg(connection) : sqlite3_errstr(code);
  }
}

}  // namespace

DatabaseError::DatabaseError(const std::string& path, sqlite3* connection, int code)
    : Error(ErrorKind::kOutput, "the database '" + (path.empty() ? "in memory" : path) +
                                    "': " + reason(connection, code)),
      code_(code & 0xff) {}

bool DatabaseError::damaged() const { return code_ == SQLITE_CORRUPT || code_ == SQLITE_NOTADB; }
bool DatabaseError::locked() const { return code_ == SQLITE_BUSY || code_ == SQLITE_LOCKED; }

Database::Database(const std::string& path) : path_(path) {
  const int code = sqlite3_open_v2(
      path.empty() ? ":memory:" : path.c_str(), &connection_,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
      nullptr);
  if (code != SQLITE_OK) {
    const DatabaseError error(path, connection_, code);
    sqlite3_close(connection_);
    throw error;
  }
  sqlite3_busy_timeout(connection_, static_cast<int>(kLockSeconds * 1000));
}

Database::~Database() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(connection_);
}

void Database::script(const std::string& sql) {
  const int code = sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(code);
}

sqlite3_stmt* Database::prepared(const char* sql) {
  sqlite3_stmt*& statement = statements_[sql];
  if (!statement) {
    const int code =
        sqlite3_prepare_v3(connection_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    if (code != SQLITE_OK) fail(code);
  }
  CHECK(!sqlite3_stmt_busy(statement), sql);
  return statement;
}

void Database::fail(int code) const { throw DatabaseError(path_, connection_, code); }

Query::~Query() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

bool Query::next() {
  if (done_) return false;  // SQLite would begin again
  const int code = sqlite3_step(statement_);
  if (code != SQLITE_ROW && code != SQLITE_DONE) database_.fail(code);
  done_ = code == SQLITE_DONE;
  return !done_;
}

int64_t Query::integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string Query::text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return text ? std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement_, column)))
              : std::string();
}

void Query::bind(int place, int64_t value) {
  const int code = sqlite3_bind_int64(statement_, place, value);
  if (code != SQLITE_OK) database_.fail(code);
}

void Query::bind(int place, std::string_view value) {
  const int code = sqlite3_bind_text64(statement_, place, value.data() ? value.data() : "",
                                       value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  if (code != SQLITE_OK) database_.fail(code);
}

Transaction::~Transaction() {
  if (sqlite3_get_autocommit(database_.connection_)) return;
  sqlite3_exec(database_.connection_, "ROLLBACK", nullptr, nullptr, nullptr);
}

}  // namespace weft
