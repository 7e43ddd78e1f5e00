// The tables that a worker knows, and what its servers call them.
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

  // A table's id: that of the table of this name, if there is one.
  int Add(const std::string& name, const TableConfig& config, bool resets_slots = false);
  bool Has(int table) const;
  int servers() const { return servers_; }
  // Stay as they are.
  const std::string& name(int table) const;
  const TableConfig& config(int table) const;

  // Asks a server for one table, or for all that it has or had.
  TableRequest RequestFor(int table) const;
  TableRequest RequestForAll(int server, std::vector<int>* tables) const;
  void Number(int server, int table, uint32_t number);
  // Fails if the server was never asked to create it.
  Status NumberOf(int server, int table, uint32_t* number) const;

 private:
  struct Known {
    std::string name;
    TableConfig config;
    bool resets_slots = false;
    std::vector<uint32_t> numbers;  // by server
  };

  const int servers_;
  mutable std::mutex mutex_;
  std::deque<Known> tables_;  // does not move what it holds
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_DIRECTORY_H_
