// A worker's tables, and their ids on the servers.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_DIRECTORY_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_DIRECTORY_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ps/protocol/message.h"

namespace tfdist::ps {

// Any thread may call it.
class TableDirectory {
 public:
  explicit TableDirectory(int servers) : servers_(servers) {}

  // Returns the table's id. A table of the same name keeps its id and configuration.
  int Add(const std::string& name, const TableConfig& config, bool resets_slots = false);
  bool Has(int table) const;
  // The id of a table by its name; -1 if it was not added.
  int Find(const std::string& name) const;
  int servers() const { return servers_; }
  // Do not change.
  const std::string& name(int table) const;
  const TableConfig& config(int table) const;

  // A request for one table, or for all that were created on a server.
  TableRequest RequestFor(int table) const;
  TableRequest RequestForAll(int server, std::vector<int>* tables) const;
  void SetTableId(int server, int table, uint32_t id);
  // Fails if the server was never asked to create it.
  Status FindTableId(int server, int table, uint32_t* id) const;

 private:
  struct Known {
    std::string name;
    TableConfig config;
    bool resets_slots = false;
    std::vector<uint32_t> ids;  // by server
  };

  const int servers_;
  mutable std::mutex mutex_;
  std::deque<Known> tables_;  // a deque does not move its elements
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_DIRECTORY_H_
