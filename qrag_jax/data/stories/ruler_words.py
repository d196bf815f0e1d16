"""Words of the needles of RULER: adjectives and nouns that make keys, and the sentences of the plain haystack."""

# The sentences that the benchmark repeats as noise.
NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)

ADJECTIVES = tuple(
    """
    able absent active adept agile airy alert alpine amber ample ancient angry antique apt arctic ardent arid ashen
    astute autumn awake azure balmy barren basic bent bitter black blank bleak blessed blind bold bouncy brave breezy
    brief bright brisk bristly broad broken bronze brown bubbly bumpy burly busy calm candid careful casual cautious
    central cheap cheery chilly civic civil classic clean clear clever close cloudy clumsy coarse coastal cold common
    compact complex cool copper coral cosmic costly cozy crafty creamy crimson crisp crooked crowded crude cryptic cubic
    curious curly curved daily damp dapper daring dark dashing dazzling deep deft delicate dense dim direct distant
    divine dizzy double drab dreamy drowsy dry dull dusky dusty dutiful eager early earnest earthy eastern easy edgy
    elastic elder elegant elfin eloquent emerald eminent empty endless epic equal errant eternal ethical even exact
    exotic expert faded faint fair faithful famous fancy fast feeble fertile festive fierce fiery final fine firm fizzy
    flat fleet flexible floral fluent fluffy foggy fond foolish formal fragile frail frank free fresh friendly frosty
    frozen frugal funny furry fuzzy gallant gaudy gentle giant gifted glad glassy gleaming global gloomy glossy golden
    good gothic graceful gracious grand grassy grateful gray great greedy green gritty grumpy gusty hairy handy happy
    hardy harsh hasty hazy healthy hearty heavy helpful hidden high hoarse hollow holy honest hopeful hot huge humble
    humid hungry husky icy ideal idle immense inner intense iron ivory jade jagged jaunty jolly jovial joyful juicy
    jumpy just keen kind knotty large lasting late lavish lawful lazy leafy lean legal level light likely limber linear
    little lively local lofty lonely long loose loud lovely loyal lucid lucky lunar lush magic major mellow merry mighty
    mild milky minor misty modern modest moist mossy muddy muted mystic narrow nasty native neat nervous nimble noble
    noisy northern novel numb nutty oaken obscure odd open opal orange orderly ornate outer oval pale patient peaceful
    pearly placid plain plucky plump polar polite proud prudent purple quaint quick quiet rapid rare raw ready regal
    rigid ripe robust rocky roomy rosy rough round royal ruby rugged rural rustic rusty sandy scarlet secret serene
    shady sharp shiny shy silent silky silver simple sleek slender slim slow small smooth snowy sober soft solar solemn
    solid sour southern spare speedy spicy spry stable stark steady steep stern stout sturdy subtle sunny swift tame
    tangy tender tepid thorny tidy timid tiny topaz tranquil tropical trusty urban useful vague valiant vast velvet
    vivid warm wary wavy western wild windy winter wise witty wooden woolly young zesty
    """.split()
)
NOUNS = tuple(
    """
    abbey acorn actor airport album alley almond anchor antler anvil apple apron arbor arch archer armor arrow artist
    aspen atlas attic autumn avenue badge badger bagel baker balcony ballad bamboo banjo banner barley barn barrel basin
    basket bath bay beach beacon bean bear beaver bell belt bench berry bicycle birch bird bison blanket blossom boat
    bolt bonnet book boot bottle boulder bow bowl branch bread breeze brick bridge brook broom brush bucket buckle
    buffalo bugle bunker butter button cabin cable cactus cake camel camera canal candle canoe canvas canyon captain
    caravan card cargo carpet carrot cart castle cat cave cedar cellar chain chair chalk chapel chart cherry chess chest
    chimney church cider circle citadel city clay cliff clock cloud clover coach coast cobra coin collar comet compass
    concert copper coral cork cottage cotton couch crab cradle crane crater crayon creek crest cricket crow crown
    crystal cup curtain cushion cypress dagger dairy daisy dancer dawn deer delta desert desk diamond diary dock doctor
    dolphin donkey door dove dragon drawer dream dress drum duck dune eagle easel echo eel elbow elder elk elm ember
    engine ermine estate falcon farm feather fence fern ferry fiddle field fig finch fire fish flag flame flask fleet
    flint flower flute forest forge fork fort fossil fountain fox frame frog garden garlic garnet gate gazelle geyser
    ginger giraffe glacier glass globe glove goat goose gorge grain granite grape grove guitar gull hammer hammock
    harbor hare harp harvest hat hawk hazel hearth hedge helmet herb heron hill hive honey hood hook horn horse hotel
    house hut inlet island ivy jacket jaguar jar jasmine jewel jigsaw judge jug juniper kayak kernel kettle key kite
    kitten knight ladder lagoon lake lamp lantern lark lemon lens leopard letter library lilac lily lime linen lion
    lizard llama lobster locket lodge loom lotus lute lynx magnet mallet mango manor map maple marble market marsh mask
    meadow medal melon mill mint mirror mole moon moose moss moth mountain mouse museum nest noodle notebook nugget nut
    oak oar oasis oat ocean olive onion orchard orchid organ otter oven owl oyster paddle palace palm panda paper parade
    parrot pasture peach pear pebble pelican pen pencil pepper piano pier pigeon pillow pine pipe planet plaza plum pond
    pony poppy porch portrait potato prairie puffin pump quail quarry quartz quill quilt rabbit raft rain raven reef
    ribbon ridge river robin rocket roof rope rose saddle sail salmon satchel saw scarf school seal shadow shell shield
    ship shore shovel shrine spade sparrow spoon spring spruce squash stable star statue stone storm stove swan sword
    table tailor tea temple tent thistle throne tiger timber torch tower trail train trumpet tulip tunnel turtle
    umbrella valley vase vessel village vine violin wagon walnut walrus water wave whale wheat wheel willow window wolf
    wren yard
    """.split()
)
