#pragma once
// A thin layer over SQLite: a connection with its prepared statements, queries and transactions.
// Whatever fails throws DatabaseError, which says in words why: the disk is full, the file is
// locked, read-only or damaged. A connection is of one thread at a time.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kernels/check.h"

struct sqlite3;
struct sqlite3_stmt;

namespace weft {

class DatabaseError : public Error {  // of the kind kOutput
 public:
  DatabaseError(const std::string& path, sqlite3* connection, int code);
  bool damaged() const;  // also where the file is no database
  bool locked() const;   // by another connection, for longer than kLockSeconds

 private:
  int code_;
};

class Database {
 public:
  static constexpr double kLockSeconds = 5;  // that a statement waits for other connections

  explicit Database(const std::string& path);  // "" is in memory; a missing file is made
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void script(const std::string& sql);  // statements without results
  const std::string& path() const { return path_; }

 private:
  friend class Query;
  friend class Transaction;
  sqlite3_stmt* prepared(const char* sql);
  [[noreturn]] void fail(int code) const;

  const std::string path_;
  sqlite3* connection_ = nullptr;
  std::unordered_map<std::string, sqlite3_stmt*> statements_;
};

// A statement with its values, which are integers and texts. The same one may not run inside
// itself.
class Query {
 public:
  template <class... Values>
  Query(Database& database, const char* sql, const Values&... values)
      : database_(database), statement_(database.prepared(sql)) {
    int place = 0;
    (bind(++place, values), ...);
  }
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  bool next();  // false after the last row
  int64_t integer(int column) const;
  std::string text(int column) const;

 private:
  void bind(int place, int64_t value);
  void bind(int place, std::string_view value);

  Database& database_;
  sqlite3_stmt* statement_;
  bool done_ = false;
};

// Runs a statement to its end. Returns the first number of its first row, which RETURNING makes of
// a change; nullopt where there is no row.
template <class... Values>
std::optional<int64_t> run(Database& database, const char* sql, const Values&... values) {
  Query query(database, sql, values...);
  std::optional<int64_t> first;
  if (query.next()) first = query.integer(0);
  while (query.next()) continue;
  return first;
}

// It takes the right to write at once, and is undone unless commit() was called.
class Transaction {
 public:
  explicit Transaction(Database& database) : database_(database) {
    run(database, "BEGIN IMMEDIATE");
  }
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() { run(database_, "COMMIT"); }

 private:
  Database& database_;
};

}  // namespace weft
