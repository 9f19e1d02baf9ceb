#include "runtime/engine/routing_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace ananke {
namespace {

constexpr std::uint64_t magic = 0x31676e6974756f72;  // "routing1"
using Header = std::array<std::uint64_t, 6>;

Header header_of(const RoutingShape& shape) {
  return {magic, shape.steps, shape.rows, shape.layers, shape.row_length, shape.k};
}

int open_file(const std::filesystem::path& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (file < 0) fail(ErrorKind::config, "cannot open the routing log {}: {}", path.string(), std::strerror(errno));
  return file;
}

}  // namespace

RoutingLog::RoutingLog(int file, std::filesystem::path path, const RoutingShape& shape)
    : file_(file), path_(std::move(path)), shape_(shape) {}

RoutingLog::RoutingLog(RoutingLog&& other) noexcept
    : file_(std::exchange(other.file_, -1)), path_(std::move(other.path_)), shape_(other.shape_) {}

RoutingLog::~RoutingLog() {
  if (file_ >= 0) ::close(file_);
}

RoutingLog RoutingLog::create(const std::filesystem::path& path, const RoutingShape& shape) {
  RoutingLog log(open_file(path, O_RDWR | O_CREAT | O_TRUNC), path, shape);
  const Header header = header_of(shape);
  if (::pwrite(log.file_, header.data(), sizeof header, 0) != static_cast<ssize_t>(sizeof header)) {
    fail(ErrorKind::resource, "cannot write the routing log {}: {}", path.string(), std::strerror(errno));
  }
  return log;
}

RoutingLog RoutingLog::open(const std::filesystem::path& path, const RoutingShape& shape) {
  RoutingLog log(open_file(path, O_RDONLY), path, shape);
  Header found{};
  const bool whole = ::pread(log.file_, found.data(), sizeof found, 0) == static_cast<ssize_t>(sizeof found);
  if (!whole || found[0] != magic) fail(ErrorKind::config, "{} is no routing log", path.string());
  const RoutingShape theirs{found[1], found[2], found[3], found[4], found[5]};
  RoutingShape wanted = shape;
  wanted.steps = theirs.steps;  // a shorter replay is fine
  if (theirs != wanted || shape.steps > theirs.steps) {
    fail(ErrorKind::config,
         "the routing log {} has {} steps, {} rows per step, {} MoE layers, rows of {} tokens and k = {}; this job has "
         "{}, "
         "{}, {}, {} and {}; record it again with this job",
         path.string(), theirs.steps, theirs.rows, theirs.layers, theirs.row_length, theirs.k, shape.steps, shape.rows,
         shape.layers, shape.row_length, shape.k);
  }
  log.shape_ = theirs;
  return log;
}

std::int64_t RoutingLog::offset(std::uint64_t step, std::uint64_t row, std::uint64_t layer) const {
  ANANKE_CHECK(step >= 1 && step <= shape_.steps && row < shape_.rows && layer < shape_.layers,
               "step {}, row {}, layer {} of a routing log", step, row, layer);
  const std::uint64_t record = ((step - 1) * shape_.rows + row) * shape_.layers + layer;
  return static_cast<std::int64_t>(sizeof(Header) + record * record_bytes());
}

void RoutingLog::write(std::uint64_t step, std::uint64_t row, std::uint64_t layer, const std::int32_t* indices) {
  const ssize_t done = ::pwrite(file_, indices, record_bytes(), offset(step, row, layer));
  if (done != static_cast<ssize_t>(record_bytes())) {
    fail(ErrorKind::resource, "cannot write the routing log {}: {}", path_.string(), std::strerror(errno));
  }
}

void RoutingLog::read(std::uint64_t step, std::uint64_t row, std::uint64_t layer, std::int32_t* indices) const {
  const ssize_t done = ::pread(file_, indices, record_bytes(), offset(step, row, layer));
  if (done != static_cast<ssize_t>(record_bytes())) {
    fail(ErrorKind::config, "the routing log {} ends before step {}, row {}, layer {}", path_.string(), step, row,
         layer);
  }
}

}  // namespace ananke
