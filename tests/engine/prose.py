"""A fixed English text of about a thousand tokens, for perplexities."""

TEXT = """\
The lighthouse at the end of the harbour wall was built in the spring of a year that nobody in the
village could agree upon. The baker said that his grandfather had carried stones for it, and the baker's
grandfather was born before the railway came. The schoolteacher, who had read the council's books, said
that the first lamp was lit in October, after three ships were lost in one week of fog. What everybody
knew was that the light had never failed since then, not in the great storm, and not in the two wars,
when it burned behind blue glass and could be seen only from the sea.

The keeper in those days was a woman called Margaret Hale. She had come to the island to teach music,
and when the old keeper fell from the stairs and broke his leg, she climbed up and lit the lamp because
somebody had to. She did it again on the next night, and on the night after that. In November a letter
came from the mainland which asked for the name of the new keeper, and since nobody else wanted the
work, the postman wrote down hers. She kept the light for thirty-one years.

Keeping a light is simple work, but it has to be done every day. In the morning the lens is cleaned with
a soft cloth and a little spirit, from the top to the bottom, so that no drop runs over glass that is
clean already. The oil is measured and written into a book. The clockwork that turns the lens is wound
by hand, two hundred turns of the handle, and the weight rises slowly through the middle of the tower
until it touches the bell. In the evening, half an hour before the sun goes down, the wick is trimmed,
the lamp is lit, and the curtains around the lens are drawn back. Then there is nothing to do but to
listen. A keeper who sleeps hears the clockwork all the same, and wakes up when it stops.

Margaret taught the children of the village in the room below the lamp. They sat on the stairs, one
child on every third step, and sang scales up and down the tower. The youngest sat at the bottom, where
the sound was best, and the oldest at the top, where they could see the ships. She said that a tower was
the best instrument that she had ever played, and that it needed only one tuning, which was to close the
door. On Sundays the fishermen came to listen. They stood outside with their hats in their hands, and
when the singing was over they went home without a word, because they did not want to be asked to sing
themselves.

In her last winter as the keeper an engineer came from the city. He had drawings with him in a long tin
tube, and he explained to the council how the light would work from then on. A cable would be laid from
the power station to the harbour, and a small motor would turn the lens. A second motor stood ready in
case the first one failed, and a telephone would ring in the office of the harbour master if both of
them did. There was no need for anybody to climb the stairs at all, except to change the bulb, which
would be once in two years.

The council listened politely. Then the baker asked what would happen if the cable broke. The engineer
said that there would be batteries for three days. The schoolteacher asked what would happen after three
days. The engineer said that within three days somebody would come and mend the cable. "In a storm?"
asked the harbour master, and for the first time the engineer looked out of the window, where the rain
came in from the west so hard that the other side of the street could not be seen.

So they made an agreement. The cable was laid, the motor was put in, and the telephone was connected.
But the old lamp stayed in its place behind the new one, with a full can of oil beside it and a box of
matches in a tin, and the handle of the clockwork was greased every spring. Every year in October, on
the day when the first lamp was lit, the electric light was turned off for one night. Then the children
of the village wound the weight up through the tower, two hundred turns, and the oldest of them lit the
wick.

Margaret Hale lived long enough to see eleven of those nights. She did not climb the stairs any more,
but sat in the room at the bottom with the door closed, and heard the handle turn, the bell at the top,
and then the slow steps of the clockwork. When she was asked whether it sounded as it should, she held
up her hand until everybody was quiet. She listened for a while. "Yes," she said at last. "But it could
do with some singing."
"""
