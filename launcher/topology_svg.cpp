#include <algorithm>
#include <cmath>
#include <map>

#include "launcher/topology_text.h"
#include "runtime/base/error.h"
#include "runtime/topology/edges.h"

namespace ananke {
namespace {

constexpr int cell = 9, gap = 2, pad = 10, title = 18, line_height = 16, top = 64, between = 56;

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};

struct Box {
  double x, y;
  double middle_x() const { return x + cell / 2.0; }
  double middle_y() const { return y + cell / 2.0; }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// Colours as far apart as the golden angle makes them.
std::string colour_of(int replica) {
  return fmt::format("hsl({},60%,50%)", std::lround(210 + 137.508 * replica) % 360);
}

class Drawing {
 public:
  explicit Drawing(const RankMap& map) : map_(map) {
    for (const NodePlace& node : map.nodes) groups_[node.group][node.rack].push_back(&node);
    for (const NodePlace& node : map.unused) groups_[node.group][node.rack].push_back(&node);
    place_groups();
  }

  std::string svg(const std::string& where, const std::string& source) {
    const std::vector<AxisEdges> axes = count_edges(map_);
    const double height = bottom_ + line_height * static_cast<double>(axes.size() + 4);
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        std::max(width_, 720.0), height);
    out += text(
        pad, 22,
        fmt::format("{}: {} ranks on {} nodes; {}", where, map_.mesh.ranks(), map_.nodes.size(), to_string(map_.mesh)),
        15);
    out += text(pad, 40,
                fmt::format("where nodes are: by {}; map {}; a colour is a replica, grey is left over; lines "
                            "are the shard axis between groups",
                            source, map_.hash()));
    return out + frames_ + nodes() + lines() + table(axes) + "</svg>\n";
  }

 private:
  static std::string text(double x, double y, const std::string& words, int size = 11) {
    return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\">{}</text>\n", x, y, size, escaped(words));
  }

  static std::size_t columns_of(const std::vector<const NodePlace*>& nodes) {
    std::size_t columns = nodes.size();
    for (const NodePlace* node : nodes) columns = std::max(columns, static_cast<std::size_t>(std::max(node->slot, 0)));
    return columns;
  }

  // Frames side by side, in rows that are about as wide as they are high together.
  void place_groups() {
    std::size_t columns = 1;
    double area = 0;
    for (auto& [group, racks] : groups_) {
      for (auto& [rack, nodes] : racks) columns = std::max(columns, columns_of(nodes));
      area += static_cast<double>(racks.size() + 3) * (cell + gap);
    }
    const double frame = static_cast<double>(columns) * (cell + gap) + 2 * pad + 34;
    const double across = std::max(1.0, std::round(std::sqrt(area / frame)));
    double x = pad, y = top, row = 0;
    for (auto& [group, racks] : groups_) {
      const double high = title + static_cast<double>(racks.size()) * (cell + gap) + pad;
      if (x > pad && x + frame > across * (frame + between)) {
        x = pad;
        y += row + between;
        row = 0;
      }
      frames_ +=
          fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"none\" stroke=\"#888\"/>\n",
                      x, y, frame, high);
      frames_ += text(x + pad, y + 13, "group " + (group.empty() ? "?" : group));
      place_racks(racks, x, y + title);
      row = std::max(row, high);
      width_ = std::max(width_, x + frame + pad);
      bottom_ = std::max(bottom_, y + high);
      x += frame + between;
    }
  }

  using Racks = std::map<std::string, std::vector<const NodePlace*>, NaturalLess>;
  void place_racks(Racks& racks, double x, double y) {
    for (auto& [rack, nodes] : racks) {
      std::ranges::sort(nodes, [](const NodePlace* a, const NodePlace* b) { return natural_less(a->node, b->node); });
      frames_ += text(x + 4, y + cell, rack.empty() ? "?" : rack, 8);
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const double column = nodes[i]->slot > 0 ? nodes[i]->slot - 1 : static_cast<double>(i);
        boxes_[nodes[i]->node] = {x + 34 + column * (cell + gap), y};
      }
      y += cell + gap;
    }
  }

  std::string nodes() const {
    std::string out;
    const auto add = [&](const NodePlace& node, const std::string& colour, const std::string& what) {
      const Box& box = boxes_.at(node.node);
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>\n",
                         box.x, box.y, cell, cell, colour, escaped(node.node + ": " + what));
    };
    for (std::size_t i = 0; i < map_.nodes.size(); ++i) {
      const int first = static_cast<int>(i) * map_.ranks_per_node, replica = first / map_.mesh.shard;
      add(map_.nodes[i], colour_of(replica),
          fmt::format("ranks {} to {}, replica {}", first, first + map_.ranks_per_node - 1, replica));
    }
    for (const NodePlace& node : map_.unused) add(node, "#ccc", "left over");
    return out;
  }

  std::string lines() const {
    std::string out;
    for (const auto& [a, b] : edges_between_groups(map_, "shard")) {
      const Box& from = boxes_.at(map_.place_of(a).node);
      const Box& to = boxes_.at(map_.place_of(b).node);
      const double bend = 0.15;
      const double x = (from.middle_x() + to.middle_x()) / 2 + bend * (to.middle_y() - from.middle_y());
      const double y = (from.middle_y() + to.middle_y()) / 2 - bend * (to.middle_x() - from.middle_x());
      out += fmt::format(
          "<path d=\"M{} {} Q{:.1f} {:.1f} {} {}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\">"
          "<title>rank {} to rank {}</title></path>\n",
          from.middle_x(), from.middle_y(), x, y, to.middle_x(), to.middle_y(), colour_of(a / map_.mesh.shard), a, b);
    }
    return out;
  }

  std::string table(const std::vector<AxisEdges>& axes) const {
    double y = bottom_ + 2 * line_height;
    std::string out;
    for (const AxisEdges& axis : axes) {
      out += text(pad, y,
                  fmt::format("{}: {} rings of {} ranks, {} of them inside a node, {} inside a group; edges: {} "
                              "in a node, {} in a rack, {} in a group, {} between groups",
                              axis.axis, axis.lines, axis.length, axis.one_node, axis.one_group, axis.in_node,
                              axis.in_rack, axis.in_group, axis.between_groups));
      y += line_height;
    }
    return out;
  }

  const RankMap& map_;
  std::map<std::string, Racks, NaturalLess> groups_;
  std::map<std::string, Box> boxes_;
  std::string frames_;
  double width_ = 0, bottom_ = top;
};

}  // namespace

std::string topology_svg(const RankMap& map, const std::string& where, const std::string& source) {
  return Drawing(map).svg(where, source);
}

}  // namespace ananke
